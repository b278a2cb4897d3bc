"""The TensorFlow code of the 2019 document runs on Keras models: as printed where it is Python.

Where a printed method has a comment as its only content, ``pass`` is added, and the printed config list
gets its missing comma. Nothing else is changed.
"""

import keras
import numpy as np
import pytest
from keras import ops

from lilliput.errors import AlgorithmError, ConfigError

BODY = {"#your code": "pass  #your code"}
PREPROCESS = {**BODY, "#preprocess model": "pass  #preprocess model"}
TF_CLASS = {"torchCompressor.TorchQuantizer": "tfCompressor.TfQuantizer"}
LAYERS = ("conv1", "conv2", "conv3", "fc")


def array(tensor):
    return np.array(ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "not compiled"])
def test_level_pruner_takes_the_model_when_called_and_prunes_80_percent(
    run, nni, model, kernel, is_compiled
):
    if not is_compiled:
        model = keras.models.clone_model(model)
    pruner = run("003_1_tf_level_pruner.py", nni=nni, model_graph=model)["pruner"]
    for name in LAYERS:
        assert int((kernel(model, name) == 0).sum()) == round(0.8 * kernel(model, name).size)
    assert pruner(model) is model


def test_masks_of_the_2019_call_hold_without_any_change_of_the_training_code(
    run, nni, model, kernel, train
):
    pruner = run("003_1_tf_level_pruner.py", nni=nni, model_graph=model)["pruner"]
    before = {name: kernel(model, name) for name in LAYERS}
    train(model, epochs=2)
    assert pruner.strip() is model
    for name in LAYERS:
        after = array(model.get_layer(name).kernel)
        assert np.array_equal(after == 0, before[name] == 0)
        assert not np.allclose(after, before[name])


def test_the_mended_config_selects_the_default_types_or_the_named_ops(run, nni, kernel):
    mended = {"[{": "configure_list = [{", "'default'\n": "'default',\n"}
    rules = run("003_3_config_list.py", mend=mended)["configure_list"]
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.LayerNormalization(name="op_name1"),
            layers.LayerNormalization(name="other"),
            layers.Dense(5, name="op_name2"),
        ]
    )
    for name in ("op_name1", "other"):
        model.get_layer(name).gamma.assign(np.random.default_rng(0).normal(size=20))
    nni.compressors.tfCompressor.LevelPruner(rules)(model)
    zeros = [int(ops.sum(model.get_layer(x).gamma == 0)) for x in ("op_name1", "other")]
    assert [*zeros, int((kernel(model, "op_name2") == 0).sum())] == [16, 0, 80]


@pytest.fixture
def agp_file(tmp_path):
    """Write the printed file, with the section named as asked for."""
    from pathlib import Path

    blocks = Path(__file__).parents[2] / "nni_documents" / "blocks"
    text = (blocks / "003_4_agp_file.yaml").read_text()

    def write(section="tfAGPruner"):
        assert text.startswith("tfAGPruner:")
        file = tmp_path / f"{section}.yaml"
        file.write_text(text.replace("tfAGPruner:", f"{section}:"))
        return file

    return write


@pytest.mark.parametrize("section", ["tfAGPruner", "AGPruner", "keras_AGPPruner"])
def test_the_printed_file_prunes_by_its_schedule_and_spares_the_excluded(
    nni, agp_file, model, kernel, section
):
    pruner = nni.compressors.tfCompressor.AGPruner()
    pruner.load_configure(agp_file(section))
    assert pruner(model) is model
    assert [w.name for w in pruner.get_modules_wrapper()] == ["conv3"]
    for epoch in range(21):
        pruner.update_epoch(epoch)
        progress = min(epoch // 2 / 8, 1)
        sparsity = 0.60 + (0.05 - 0.60) * (1 - progress) ** 3
        zeros = int((kernel(model, "conv3") == 0).sum())
        assert zeros == round(kernel(model, "conv3").size * sparsity)
    for name in ("conv1", "conv2", "fc"):
        assert (kernel(model, name) != 0).all()


def test_the_printed_file_follows_fit_by_the_callback(nni, agp_file, model, kernel, train):
    pruner = nni.compressors.tfCompressor.AGPruner(agp_file())
    pruner(model)
    train(model, epochs=17, callbacks=[pruner.callback()])
    size = kernel(model, "conv3").size
    assert int((kernel(model, "conv3") == 0).sum()) == round(0.60 * size)


def test_a_section_for_torch_is_refused_on_a_keras_model(nni, agp_file, model):
    pruner = nni.compressors.tfCompressor.AGPruner()
    pruner.load_configure(agp_file("torchAGPruner"))
    with pytest.raises(ConfigError, match="'torchAGPruner' is for another framework than keras"):
        pruner(model)


@pytest.mark.parametrize("kind", [np.asarray, ops.convert_to_tensor], ids=["array", "tensor"])
def test_your_pruner_masks_with_what_it_returns_without_calling_super(
    run, nni, one_layer, kernel, train, kind
):
    mask = (np.random.default_rng(0).random((6, 4)) > 0.5).astype("float32")
    before, bias = kernel(one_layer), array(one_layer.get_layer("fc").bias)
    block = run("003_5_tf_your_pruner.py", mend=BODY, nni=nni, your_mask=kind(mask))
    pruner = block["YourPruner"]("your input")
    assert pruner(one_layer) is one_layer
    x = np.random.default_rng(1).normal(size=(5, 6)).astype("float32")
    np.testing.assert_allclose(array(one_layer(x)), x @ (before * mask) + bias, atol=1e-5)
    train(one_layer, epochs=2)
    pruner.step()
    pruner.update_epoch(1)
    assert np.array_equal(kernel(one_layer) != 0, mask == 1)
    assert not np.allclose(kernel(one_layer)[mask == 1], before[mask == 1])
    assert pruner.your_method("your input") is None


def test_your_pruner_gets_layer_info_and_weight(run, nni, model, kernel):
    printed = run("003_5_tf_your_pruner.py", mend=BODY, nni=nni)["YourPruner"]
    seen = []

    class Mine(printed):
        def calc_mask(self, layer_info, weight):
            seen.append((layer_info.name, layer_info.layer, tuple(weight.shape)))
            return ops.cast(weight > 0, "float32")

    before = {name: kernel(model, name) for name in LAYERS}
    Mine("your input")(model)
    assert seen == [(name, model.get_layer(name), before[name].shape) for name in LAYERS]
    for name in LAYERS:
        assert np.array_equal(kernel(model, name), before[name].clip(min=0))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="functions of TensorFlow")
def test_your_classes_may_use_the_functions_of_tensorflow(nni, one_layer, kernel, train):
    import tensorflow as tf

    class Mask(nni.compressors.tfCompressor.TfPruner):
        def __init__(self, threshold):
            self.threshold = threshold

        def calc_mask(self, layer_info, weight):
            return tf.cast(tf.abs(weight) > self.threshold, weight.dtype)

    class Round(nni.compressors.tfCompressor.TfQuantizer):
        def __init__(self, steps):
            self.steps = steps

        def quantize_weight(self, layer_info, weight):
            return tf.round(weight * self.steps) / self.steps

    before = kernel(one_layer)
    Mask(0.3)(one_layer)
    assert np.array_equal(kernel(one_layer) != 0, np.abs(before) > 0.3)
    Round(64)(one_layer)
    train(one_layer)
    assert np.array_equal(kernel(one_layer) * 64, np.round(kernel(one_layer) * 64))
    assert (kernel(one_layer)[np.abs(before) <= 0.3] == 0).all()


@pytest.mark.parametrize(
    ("block", "mend"),
    [
        ("003_7_tf_your_quantizer.py", BODY),
        ("003_9_preprocess_model.py", {**PREPROCESS, **TF_CLASS}),
    ],
)
def test_your_quantizer_computes_with_the_weight_it_returns(
    run, nni, one_layer, train, block, mend
):
    new = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    namespace = run(block, mend=mend, nni=nni, new_weight=ops.convert_to_tensor(new))
    layer = one_layer.get_layer("fc")
    before, bias = array(layer.kernel), array(layer.bias)
    quantizer = namespace["YourPruner"]("your input")
    assert quantizer(one_layer) is one_layer
    x = np.random.default_rng(1).normal(size=(5, 6)).astype("float32")
    np.testing.assert_allclose(array(one_layer(x)), x @ new + bias, atol=1e-5)
    train(one_layer, epochs=2)
    assert np.array_equal(array(layer.kernel), new)
    assert not np.allclose(array(quantizer.strip().get_layer("fc").kernel), before)


def test_your_quantizer_gets_a_tensor_in_the_forward_that_fit_compiles(run, nni, model, train):
    printed = run("003_7_tf_your_quantizer.py", mend=BODY, nni=nni)["YourPruner"]
    seen = {}

    class Mine(printed):
        def quantize_weight(self, layer_info, weight):
            seen[layer_info.name] = tuple(weight.shape)
            return ops.round(weight * 16) / 16

    quantizer = Mine("your input")
    quantizer(model)
    raw = [array(w.weight) for w in quantizer.get_modules_wrapper()]
    train(model)
    assert seen == {name: tuple(model.get_layer(name).kernel.shape) for name in LAYERS}
    for wrapper, before in zip(quantizer.get_modules_wrapper(), raw, strict=True):
        assert not np.allclose(array(wrapper.weight), before)
        expected = np.round(array(wrapper.weight) * 16) / 16
        np.testing.assert_array_equal(array(wrapper.module.kernel), expected)


def test_a_quantizer_that_returns_an_array_is_told_that_a_tensor_is_needed(run, nni, one_layer):
    block = run("003_7_tf_your_quantizer.py", mend=BODY, nni=nni, new_weight=np.ones((6, 4)))
    quantizer = block["YourPruner"]("your input")
    with pytest.raises(AlgorithmError, match="expected a tensor"):
        quantizer(one_layer)
        one_layer(np.zeros((1, 6), "float32"))


def test_preprocess_model_runs_once_before_the_layers_are_looked_up(run, nni, one_layer):
    mend = {**PREPROCESS, **TF_CLASS}
    printed = run("003_9_preprocess_model.py", mend=mend, nni=nni)["YourPruner"]
    models = []

    class Mine(printed):
        def quantize_weight(self, layer_info, weight):
            return ops.zeros_like(weight)

        def preprocess_model(self, model):
            models.append(model)
            model.add(keras.layers.Dense(2, bias_initializer="ones", name="added"))

    quantizer = Mine("your input")
    assert quantizer(one_layer) is one_layer
    assert models == [one_layer]
    assert [w.name for w in quantizer.get_modules_wrapper()] == ["fc", "added"]
    assert np.array_equal(array(one_layer(np.ones((5, 6), "float32"))), np.ones((5, 2)))


def test_preprocess_model_may_return_another_model(nni, one_layer):
    class Mine(nni.compressors.tfCompressor.TfPruner):
        def __init__(self):
            pass

        def preprocess_model(self, model):
            return keras.models.clone_model(model)

        def calc_mask(self, layer_info, weight):
            return np.zeros(weight.shape)

    pruned = Mine()(one_layer)
    assert pruned is not one_layer
    assert not array(pruned.get_layer("fc").kernel).any()
    assert array(one_layer.get_layer("fc").kernel).any()


class GrowingPruner:
    """Prune one column more at each step or epoch, as the document leaves it to the designer."""

    def __init__(self, columns=0):
        self.columns = columns
        self.calls = []

    def calc_mask(self, layer_info, weight):
        return np.arange(weight.shape[1]) >= np.full(tuple(weight.shape), self.columns)


def test_step_and_update_epoch_of_the_designer_renew_the_masks(nni, one_layer, kernel):
    class Mine(GrowingPruner, nni.compressors.tfCompressor.TfPruner):
        def step(self):
            self.columns += 1

        def update_epoch(self, epoch):
            self.columns = epoch

    pruner = Mine()
    pruner(one_layer)
    pruner.step()
    assert (kernel(one_layer) == 0).all(axis=0).tolist() == [True, False, False, False]
    pruner.update_epoch(3)
    assert (kernel(one_layer) == 0).all(axis=0).tolist() == [True, True, True, False]


def test_fit_calls_them_through_the_callback(nni, one_layer, kernel, train):
    class Mine(GrowingPruner, nni.compressors.tfCompressor.TfPruner):
        def step(self):
            self.calls.append("step")

        def update_epoch(self, epoch):
            self.calls.append(epoch)
            self.columns = epoch

    pruner = Mine()
    pruner(one_layer)
    train(one_layer, epochs=3, callbacks=[pruner.callback()])
    assert pruner.calls == [0, *["step"] * 4, 1, *["step"] * 4, 2, *["step"] * 4]
    assert (kernel(one_layer) == 0).all(axis=0).tolist() == [True, True, False, False]


def test_a_loop_over_train_on_batch_calls_them_itself(nni, one_layer, kernel):
    class Mine(GrowingPruner, nni.compressors.tfCompressor.TfPruner):
        def step(self):
            self.columns += 1

    pruner = Mine()
    pruner(one_layer)
    random = np.random.default_rng(0)
    for _ in range(3):
        x, y = random.normal(size=(8, 6)), random.normal(size=(8, 4))
        one_layer.train_on_batch(x.astype("float32"), y.astype("float32"))
        pruner.step()
    assert (kernel(one_layer) == 0).all(axis=0).tolist() == [True, True, True, False]
