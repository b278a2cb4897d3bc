"""Pruners that look at data: on the same weights and batches, torch and Keras get the same masks."""

import keras
import numpy as np
import pytest
from keras import layers, ops

torch = pytest.importorskip("torch")

import lilliput.keras as on_keras  # noqa: E402
import lilliput.torch as on_torch  # noqa: E402
from lilliput.errors import StageError, UnsupportedModelError  # noqa: E402

from .test_same_as_torch import BATCH, masks_of, outputs, to_numpy, twins  # noqa: E402

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LABELS = np.arange(16) % 10
BATCHES = [(BATCH[:8], LABELS[:8]), (BATCH[8:], LABELS[8:])]
CONVOLUTIONS = [{"op_names": ["conv1", "conv2"], "sparsity": 0.5}]


def for_torch(batches):
    return [
        (torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y)) for x, y in batches
    ]


def torch_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def keras_loss(model, batch):
    logits = model(batch[0], training=False)
    return ops.mean(keras.losses.sparse_categorical_crossentropy(batch[1], logits, True))


CASES = {
    "ActivationAPoZRankPruner": ({}, {}),
    "ActivationMeanRankPruner": ({}, {}),
    "TaylorFOWeightPruner": ({"loss": torch_loss}, {"loss": keras_loss}),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["before compress", "after compress"])
@pytest.mark.parametrize("name", CASES)
def test_data_gives_the_same_masks(name, is_first):
    one, other = twins()
    first = getattr(on_torch, name)(one, CONVOLUTIONS, example_inputs=torch.ones(1, 3, 9, 9))
    second = getattr(on_keras, name)(other, CONVOLUTIONS)
    before = other.get_weights()
    for pruner, batches, options in zip(
        (first, second), (for_torch(BATCHES), BATCHES), CASES[name], strict=True
    ):
        if is_first:
            pruner.calibrate(batches, **options)
            pruner.compress()
        else:
            pruner.compress()
            pruner.calibrate(batches, **options)
    for left, right in zip(first.get_wrappers(), second.get_wrappers(), strict=True):
        scores = [to_numpy(w.compressor.masker.score(w)) for w in (left, right)]
        np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4, atol=1e-6 * scores[0].max())
    expected = masks_of(first)
    for key, mask in masks_of(second).items():
        np.testing.assert_array_equal(mask, expected[key], err_msg=key)
        assert 0 < mask.mean() < 1
    np.testing.assert_allclose(*outputs(one, other), atol=1e-5)
    for raw, value in zip(other.get_weights(), before, strict=True):
        assert np.all((raw == value) | (raw == 0))  # nothing was trained


def test_slim_gives_the_same_masks():
    one, other = twins()
    rules = [{"sparsity": 0.5}]
    first = on_torch.SlimPruner(one, rules, example_inputs=torch.ones(1, 3, 9, 9))
    second = on_keras.SlimPruner(other, rules)
    first.compress()
    second.compress()
    ((expected,), (found,)) = (p.get_wrappers() for p in (first, second))
    np.testing.assert_array_equal(to_numpy(found.weight_mask), expected.weight_mask.numpy())
    assert to_numpy(found.weight_mask).sum() == 4
    np.testing.assert_allclose(*outputs(one, other), atol=1e-5)


def scales_after(penalty, epochs):
    """Return the scales of the norm before, and after a step of each of some epochs."""
    _, model = twins()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    callbacks = []
    if penalty is not None:
        pruner = on_keras.SlimPruner(
            model, [{"sparsity": 0.5}], model.optimizer, training_epochs=1, scale=penalty
        )
        pruner.compress()
        callbacks.append(pruner.callback())
    norm = model.get_layer("bn1")
    before = to_numpy(norm.gamma.value)
    model.fit(BATCH, LABELS, batch_size=16, epochs=epochs, verbose=0, callbacks=callbacks)
    if penalty is not None:
        assert (norm._lilliput.wrappers[0].compressor.masker.is_penalizing) == (epochs == 1)
        assert (norm.__dict__["gamma"].regularizer is None) == (epochs > 1)
        pruner.strip()
        assert norm.gamma.regularizer is None
    return before, to_numpy(norm.gamma.value)


def test_slim_pulls_scales_to_zero_by_the_subgradient():
    before, plain = scales_after(None, 1)
    _, pulled = scales_after(0.5, 1)
    np.testing.assert_allclose(pulled - plain, -0.1 * 0.5 * np.sign(before), rtol=1e-4)


def test_slim_prunes_after_its_epochs():
    _, pulled = scales_after(0.5, 2)
    assert (pulled == 0).sum() == 4


def test_a_regularizer_of_the_user_stays():
    inputs = keras.Input((8,))
    x = layers.Dense(8)(inputs)
    x = layers.BatchNormalization(gamma_regularizer=keras.regularizers.L2(0.5))(x)
    model = keras.Model(inputs, layers.Dense(2)(x))
    (norm,) = (layer for layer in model.layers if "batch" in layer.name)
    held = norm.gamma.regularizer
    model.compile("sgd", "mse")
    rules = [{"op_types": ["BatchNormalization"], "sparsity": 0.5}]
    pruner = on_keras.SlimPruner(model, rules, model.optimizer, training_epochs=1, scale=0.25)
    pruner.compress()
    (loss,) = model.losses
    assert float(to_numpy(loss)) == pytest.approx(8 * 0.5 + 8 * 0.25)
    pruner.strip()
    assert norm.gamma.regularizer is held


def test_training_without_batches_is_refused():
    """Compiled training shows none: without calibrate() nothing would ever be pruned."""
    _, model = twins()
    model.compile("sgd", "sparse_categorical_crossentropy")
    pruner = on_keras.ActivationAPoZRankPruner(model, CONVOLUTIONS, model.optimizer)
    pruner.compress()
    with pytest.raises(StageError, match=r"call calibrate\(batches\) before"):
        model.fit(BATCH, LABELS, verbose=0)


def test_a_schedule_of_such_a_criterion_is_refused():
    _, model = twins()
    rules = [{"op_types": ["Conv2D"], "final_sparsity": 0.5, "end_epoch": 2}]
    with pytest.raises(UnsupportedModelError, match="such as 'l1'"):
        on_keras.AGPPruner(model, rules, pruning_algorithm="apoz")


def test_an_activation_of_the_layer_itself_is_not_applied_twice():
    """GELU of GELU would be another number; Keras layers may have theirs inside."""
    kernel = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((32, 3)).astype(np.float32)
    found = []
    for inside in (True, False):
        hidden = layers.Dense(4, "gelu" if inside else None, use_bias=False, name="a")
        parts = [hidden] if inside else [hidden, layers.Activation("gelu")]
        model = keras.Sequential([keras.Input((3,)), *parts, layers.Dense(2)])
        hidden.kernel.assign(kernel)
        rules = [{"op_names": ["a"], "sparsity": 0.5}]
        pruner = on_keras.ActivationMeanRankPruner(model, rules, activation="gelu")
        pruner.calibrate([x])
        (wrapper,) = pruner.get_wrappers()
        found.append(to_numpy(pruner.masker.score(wrapper)))
    np.testing.assert_allclose(
        found[0], found[1], atol=1e-3
    )  # Keras has the approximate one inside
    gelu = torch.nn.functional.gelu(torch.from_numpy(x @ kernel)).mean(0).numpy()
    np.testing.assert_allclose(found[1], gelu, rtol=1e-4, atol=1e-5)
