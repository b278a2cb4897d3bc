"""``layer.kernel`` of a compressed layer: it reads as the compressed value, writes reach the raw variable."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.errors import StageError
from lilliput.keras import LevelPruner, NaiveQuantizer, PrunerModuleWrapper, QATQuantizer

BACKEND = keras.backend.backend()
COMPRESSORS = {
    "masked": lambda model: LevelPruner(model, [{"sparsity": 0.5}]),
    "quantized": lambda model: NaiveQuantizer(model, [{"quant_bits": 4}]),
    "trained": lambda model: QATQuantizer(model, [{"quant_types": ["weight"], "quant_bits": 4}]),
}
VALUES = np.linspace(0.1, 1, 24, dtype="float32").reshape(4, 6)


def array(value):
    return np.array(ops.convert_to_numpy(ops.convert_to_tensor(value)))


def compressed(name):
    """Return a compressed layer, its raw kernel and its compressor."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(6, name="dense")])
    layer = model.get_layer("dense")
    kernel = layer.kernel
    compressor = COMPRESSORS[name](model)
    compressor.compress()
    return layer, kernel, compressor


def seen(layer):
    """Return the kernel that the layer computes with."""
    return array(layer(np.eye(4, dtype="float32"), training=False) - layer.bias)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_assigned_reaches_the_raw_variable(name):
    layer, raw, compressor = compressed(name)
    layer.kernel.assign(VALUES)
    assert np.array_equal(array(raw), VALUES)
    layer.kernel.assign_add(np.ones((4, 6)))
    assert np.array_equal(array(raw), VALUES + 1)  # not the compressed value plus one
    layer.kernel.assign_sub(np.ones((4, 6)))
    assert np.allclose(array(raw), VALUES, atol=1e-6)
    compressor.strip()
    assert layer.kernel is raw


@pytest.mark.parametrize("name", COMPRESSORS)
def test_reads_are_of_the_compressed_value_as_it_is_now(name):
    layer, raw, _ = compressed(name)
    kernel = layer.kernel
    kernel.assign(VALUES)
    expected = seen(layer)
    assert not np.array_equal(array(raw), expected)
    for received in (kernel, kernel + 0, kernel[:], kernel.value, ops.matmul(np.eye(4), kernel)):
        assert np.allclose(array(received), expected, atol=1e-6)
    assert np.allclose(np.asarray(kernel), expected, atol=1e-6)
    assert np.allclose(kernel.numpy(), expected, atol=1e-6)


def test_masks_hold_over_what_is_assigned():
    layer, _, pruner = compressed("masked")
    wrapper = pruner.get_wrappers()[0]
    assert isinstance(wrapper, PrunerModuleWrapper)
    layer.kernel.assign(VALUES)
    assert np.array_equal(array(layer.kernel), VALUES * array(wrapper.weight_mask))
    pruner.strip()
    assert np.array_equal(array(layer.kernel), VALUES * array(wrapper.weight_mask))


def test_it_is_the_raw_variable_in_all_other_ways():
    layer, raw, _ = compressed("masked")
    assert isinstance(layer.kernel, keras.Variable)
    assert layer.kernel.path == raw.path and layer.kernel.dtype == raw.dtype
    layer.kernel.trainable = False
    assert not raw.trainable
    with pytest.raises(ValueError, match="shape"):
        layer.kernel.assign(np.ones((3, 3)))
    assert "ComputedVariable" in repr(layer.kernel)


@pytest.mark.skipif(BACKEND != "torch", reason="tensors of the others cannot be edited")
@pytest.mark.parametrize("name", COMPRESSORS)
def test_edits_in_place_are_refused_on_torch(name):
    import torch

    layer, raw, _ = compressed(name)
    before = array(raw)
    edits = [
        lambda kernel: kernel.data.fill_(1),
        lambda kernel: kernel.value.data.fill_(1),
        lambda kernel: kernel.value[0].fill_(1),
        torch.nn.init.zeros_,
        lambda kernel: torch.nn.init.normal_(kernel.value),
    ]
    for edit in edits:
        with pytest.raises(StageError, match=r"layer\.kernel\.assign"):
            edit(layer.kernel)
    assert np.array_equal(array(raw), before)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="operations of TensorFlow")
def test_tensorflow_reads_the_compressed_value_and_finds_the_gradient():
    import tensorflow as tf

    layer, raw, pruner = compressed("masked")
    layer.kernel.assign(VALUES)
    mask = array(pruner.get_wrappers()[0].weight_mask)
    functions = [
        tf.identity,
        tf.nn.relu,
        lambda x: tf.gather(x, range(4)),
        lambda x: tf.concat([x], 0),
    ]
    for function in functions:
        assert np.array_equal(function(layer.kernel), VALUES * mask)
        assert np.array_equal(tf.function(function)(layer.kernel), VALUES * mask)
    kernel = layer.kernel
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.ones((1, 4), "float32")))
    assert np.array_equal(tape.gradient(loss, kernel), mask)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(kernel * 3)
    assert np.array_equal(tape.gradient(loss, raw.value), 3 * mask)
