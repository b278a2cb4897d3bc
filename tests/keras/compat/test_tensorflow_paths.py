"""Code for NNI 1.x and 2.x on TensorFlow: both ways to construct, its hook, its types and files."""

import sys
import types

import keras
import numpy as np
import pytest
from keras import ops

import lilliput.keras
from lilliput.errors import ConfigError, UnsupportedModelError

HOMES = ["nni.compression.tensorflow", "nni.algorithms.compression.tensorflow.pruning"]
CONFIG = [{"sparsity": 0.8, "op_types": ["default"]}]


@pytest.mark.parametrize("home", HOMES)
def test_the_documented_call_prunes_the_model_in_place(home, model, kernel):
    namespace = {"model": model, "config_list": CONFIG}
    exec(f"from {home} import LevelPruner", namespace)
    assert issubclass(namespace["LevelPruner"], lilliput.keras.LevelPruner)
    exec("pruner = LevelPruner(model, config_list)\npruned = pruner.compress()", namespace)
    assert namespace["pruned"] is model
    assert round((kernel(model, "conv3") == 0).mean(), 2) == 0.8


def test_a_subclassed_model_is_pruned_as_well(kernel):
    from nni.algorithms.compression.tensorflow.pruning import LevelPruner

    class LeNet(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = keras.layers.Conv2D(4, 3, activation="relu", name="conv")
            self.pool = keras.layers.MaxPool2D()
            self.flatten = keras.layers.Flatten()
            self.fc = keras.layers.Dense(5, name="fc")

        def call(self, x):
            return self.fc(self.flatten(self.pool(self.conv(x))))

    model = LeNet()
    model(np.zeros((1, 8, 8, 1), "float32"))
    LevelPruner(model, CONFIG).compress()
    assert round((kernel(model, "fc") == 0).mean(), 2) == 0.8


@pytest.mark.parametrize("home", HOMES)
def test_a_wrong_config_list_is_a_schema_error_as_well(home, model, monkeypatch):
    schema = types.ModuleType("schema")
    schema.SchemaError = type("SchemaError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "schema", schema)
    namespace = {}
    exec(f"from {home} import LevelPruner", namespace)
    with pytest.raises(schema.SchemaError, match="sparsityy") as caught:
        namespace["LevelPruner"](model, [{"sparsityy": 0.8}]).compress()
    assert isinstance(caught.value, ConfigError)


def test_a_model_without_weights_yet_is_told_to_be_built():
    from nni.compression.tensorflow import LevelPruner

    model = keras.Sequential([keras.layers.Dense(4)])
    with pytest.raises(UnsupportedModelError, match="build"):
        LevelPruner(model, CONFIG).compress()


def test_the_hook_of_v1_1_gets_all_its_arguments(nni, one_layer, kernel):
    seen = []

    class Mine(nni.compression.tensorflow.Pruner):
        def calc_mask(self, weight, config, op, op_type, op_name):
            seen.append((config["sparsity"], op, op_type, op_name))
            return np.zeros(weight.shape)

    Mine(CONFIG)(one_layer)
    assert seen == [(0.8, one_layer.get_layer("fc"), "Dense", "fc")]
    assert not kernel(one_layer).any()


def test_quantizers_of_v1_1_take_q_bits(nni, model, kernel):
    quantizer = nni.compression.tensorflow.DoReFaQuantizer([{"q_bits": 4, "op_types": ["Dense"]}])
    quantizer(model)
    assert len(np.unique(kernel(model, "fc"))) <= 16
    assert len(np.unique(kernel(model, "conv3"))) > 16


def test_operations_of_a_graph_select_the_layers_that_compute_them(nni, model):
    rules = [{"sparsity": 0.5, "support_type": ["MatMul"]}]
    pruner = nni.compressors.tfCompressor.LevelPruner(rules)
    pruner(model)
    assert [w.name for w in pruner.get_modules_wrapper()] == ["fc"]


def test_names_of_keras_and_of_torch_select_the_same_layers(nni, model):
    chosen = []
    for listed in (["Conv2D", "Dense"], ["Conv2d", "Linear"]):
        pruner = nni.compression.tensorflow.LevelPruner(
            model, [{"sparsity": 0.5, "op_types": listed}]
        )
        chosen.append([w.name for w in pruner.get_modules_wrapper()])
    assert chosen == [["conv1", "conv2", "conv3", "fc"]] * 2


def test_a_type_in_the_wrong_case_gets_a_hint(nni, model):
    with pytest.raises(ConfigError, match="Did you mean 'Conv2[dD]'"):
        nni.compression.tensorflow.LevelPruner(model, [{"sparsity": 0.5, "op_types": ["conv2D"]}])


def test_export_model_writes_a_plain_model_and_the_masks(nni, model, kernel, tmp_path):
    pruner = nni.compression.tensorflow.LevelPruner(model, CONFIG)
    pruner.compress()
    path, masks = tmp_path / "model.keras", tmp_path / "masks.safetensors"
    pruner.export_model(str(path), str(masks))
    plain = keras.saving.load_model(path, compile=False)
    assert type(plain.get_layer("fc")) is keras.layers.Dense
    for name in ("conv1", "fc"):
        assert np.array_equal(kernel(plain, name), kernel(model, name))
    assert masks.stat().st_size > 0


def test_wrappers_attributes_and_collectors_work_as_on_torch(nni, one_layer):
    pruner = nni.compression.tensorflow.LevelPruner(one_layer, CONFIG)
    pruner.set_wrappers_attribute("seen", [])
    pruner.compress()
    identifier = pruner.add_activation_collector(
        lambda wrapper, input_, output: wrapper.seen.append(tuple(output.shape))
    )
    one_layer(np.zeros((5, 6), "float32"))
    pruner.remove_activation_collector(identifier)
    one_layer(np.zeros((5, 6), "float32"))
    assert pruner.get_modules_wrapper()[0].seen == [(5, 4)]


def test_a_state_dict_is_refused_and_nothing_is_stripped(nni, one_layer):
    pruner = nni.compression.tensorflow.LevelPruner(one_layer, CONFIG)
    pruner.compress()
    for call in (pruner.reset, pruner.load_model_state_dict):
        with pytest.raises(UnsupportedModelError, match=r"load_weights\(path\)"):
            call({"fc": 1})
    assert pruner.is_wrapped


def test_reset_starts_anew_with_masks_of_ones(nni, one_layer):
    pruner = nni.compression.tensorflow.LevelPruner(one_layer, CONFIG)
    pruner.compress()
    pruner.reset()
    assert pruner.is_wrapped
    (wrapper,) = pruner.get_modules_wrapper()
    assert float(ops.min(wrapper.weight_mask)) == 1
