"""The code of the 2019 document: as printed where it is Python, and mended where it is not.

Its list of rules lacks a comma, and its classes have methods whose only content is a comment. The
mends are spelled out here, and add nothing but a comma and ``pass``. The blocks for TensorFlow run on
Keras models in ``tests/keras/compat``.
"""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import ConfigError, UnsupportedModelError

BODY = {"#your code": "pass  #your code"}


@pytest.fixture
def nni(shim):
    import nni

    return nni


def test_level_pruner_takes_the_model_when_called_and_prunes_80_percent(run, raw, nni, model):
    namespace = run("003_2_torch_level_pruner.py", nni=nni, model=model)
    for layer in (model.conv1, model.conv2, model.conv3, model.fc):
        assert int((raw(layer) == 0).sum()) == round(0.8 * raw(layer).numel())
    assert namespace["pruner"](model) is model


def test_masks_of_the_2019_call_hold_when_the_user_calls_step(run, train, raw, nni, model):
    pruner = run("003_2_torch_level_pruner.py", nni=nni, model=model)["pruner"]
    zero = raw(model.fc) == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 1, 8, 8)
    pruner.step()
    assert torch.equal(raw(model.fc) == 0, zero)
    assert torch.equal(pruner.strip().fc.weight == 0, zero)


@pytest.fixture
def model_graph():
    """An object of the class that tf.get_default_graph() returned; TensorFlow is not needed for it."""
    return type("Graph", (), {"__module__": "tensorflow.python.framework.ops"})()


def test_the_tensorflow_call_with_a_graph_names_the_keras_route(run, nni, model_graph):
    with pytest.raises(UnsupportedModelError, match="TensorFlow graph.* keras.Sequential"):
        run("003_1_tf_level_pruner.py", nni=nni, model_graph=model_graph)


@pytest.mark.parametrize("block", ["003_5_tf_your_pruner.py", "003_7_tf_your_quantizer.py"])
def test_the_tensorflow_classes_with_a_graph_name_the_keras_route(run, nni, model_graph, block):
    compressor = run(block, mend=BODY, nni=nni)["YourPruner"]("your input")
    for compress in (compressor, compressor.compress):
        with pytest.raises(UnsupportedModelError, match="TensorFlow graph.* keras.Sequential"):
            compress(model_graph)
    with pytest.raises(UnsupportedModelError, match="build the model with Keras 3"):
        compressor.compress_default_graph()


def test_the_mended_config_selects_the_default_types_or_the_named_ops(run, raw, nni):
    # An expression, so that its value can be used.
    mended = {"[{": "configure_list = [{", "'default'\n": "'default',\n"}
    rules = run("003_3_config_list.py", mend=mended)["configure_list"]
    layers = {"op_name1": nn.LayerNorm(20), "other": nn.LayerNorm(20), "op_name2": nn.Linear(20, 5)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    nn.init.normal_(layers["op_name1"].weight)
    nni.compressors.torchCompressor.LevelPruner(rules)(model)
    assert [int((raw(x) == 0).sum()) for x in layers.values()] == [16, 0, 80]


@pytest.fixture
def agp_file(tmp_path):
    """Write the printed file, with the section named as asked for."""
    text = (Path(__file__).parent / "blocks" / "003_4_agp_file.yaml").read_text()

    def write(section):
        assert text.startswith("tfAGPruner:")
        file = tmp_path / f"{section}.yaml"
        file.write_text(text.replace("tfAGPruner:", f"{section}:"))
        return file

    return write


def test_the_printed_file_is_for_tensorflow_and_says_so_on_torch(nni, agp_file, model):
    pruner = nni.compressors.torchCompressor.AGPruner()
    pruner.load_configure(agp_file("tfAGPruner"))
    with pytest.raises(ConfigError, match="'tfAGPruner' is for another framework than torch"):
        pruner(model)
    assert pruner.bound_model is None


@pytest.mark.parametrize("section", ["AGPruner", "torchAGPruner"])
def test_the_file_prunes_by_its_schedule_and_spares_the_excluded(
    raw, nni, agp_file, model, section, caplog
):
    caplog.set_level(logging.ERROR)
    pruner = nni.compressors.torchCompressor.AGPruner()
    pruner.load_configure(agp_file(section))
    assert pruner(model) is model
    assert [w.name for w in pruner.get_modules_wrapper()] == ["conv3"]
    count = raw(model.conv3).numel()
    for epoch in range(21):
        pruner.update_epoch(epoch)
        progress = min(epoch // 2 / 8, 1)
        sparsity = 0.60 + (0.05 - 0.60) * (1 - progress) ** 3
        assert int((raw(model.conv3) == 0).sum()) == round(count * sparsity)
    for layer in (model.conv1, model.conv2, model.fc):
        assert (raw(layer) != 0).all()


def test_your_pruner_masks_with_what_it_returns_without_calling_super(run, train, raw, nni):
    model = nn.Linear(6, 4)
    mask = (torch.rand(4, 6) > 0.5).float()
    before = raw(model).detach().clone()
    cls = run("003_6_torch_your_pruner.py", mend=BODY, nni=nni, your_mask=mask)["YourPruner"]
    pruner = cls("your input")
    assert pruner(model) is model
    x = torch.randn(5, 6)
    assert torch.equal(model(x), F.linear(x, before * mask, model.bias))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 6)
    pruner.step()
    pruner.update_epoch(1)
    assert torch.equal(raw(model) != 0, mask.bool())
    assert not raw(model).grad[mask == 0].any()
    assert pruner.your_method("your input") is None


def test_your_pruner_gets_layer_info_and_weight(run, raw, nni, model):
    printed = run("003_6_torch_your_pruner.py", mend=BODY, nni=nni)["YourPruner"]
    seen = []

    class Mine(printed):
        def calc_mask(self, layer_info, weight):
            seen.append((layer_info.name, layer_info.layer, tuple(weight.shape)))
            return (weight > 0).float()

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Mine("your input")(model)
    layers = {name: model.get_submodule(name) for name in ("conv1", "conv2", "conv3", "fc")}
    assert seen == [(name, x, tuple(raw(x).shape)) for name, x in layers.items()]
    for name, layer in layers.items():
        assert torch.equal(layer.weight, before[f"{name}.weight"].clamp(min=0))


@pytest.mark.parametrize(
    ("block", "mend"),
    [
        ("003_8_torch_your_quantizer.py", BODY),
        ("003_9_preprocess_model.py", {**BODY, "#preprocess model": "pass  #preprocess model"}),
    ],
)
def test_your_quantizer_computes_with_the_weight_it_returns(run, train, raw, nni, block, mend):
    model = nn.Linear(6, 4)
    new_weight = torch.randn(4, 6)
    before = raw(model).detach().clone()
    quantizer = run(block, mend=mend, nni=nni, new_weight=new_weight)["YourPruner"]("your input")
    assert quantizer(model) is model
    x = torch.randn(5, 6)
    assert torch.equal(model(x), F.linear(x, new_weight, model.bias))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)
    assert not torch.equal(raw(model), before)
    assert torch.equal(model.weight, new_weight)


def test_your_quantizer_gets_layer_info_and_weight_of_every_layer(run, raw, nni, model):
    printed = run("003_8_torch_your_quantizer.py", mend=BODY, nni=nni)["YourPruner"]
    seen = []

    class Mine(printed):
        def quantize_weight(self, layer_info, weight):
            seen.append(layer_info.name)
            return (weight * 16).round() / 16

    Mine("your input")(model)
    model(torch.randn(2, 1, 8, 8))
    assert list(dict.fromkeys(seen)) == ["conv1", "conv2", "conv3", "fc"]
    assert torch.equal(model.conv1.weight, (raw(model.conv1) * 16).round() / 16)


def test_preprocess_model_runs_once_before_the_layers_are_looked_up(run, nni):
    mend = {**BODY, "#preprocess model": "pass  #preprocess model"}
    printed = run("003_9_preprocess_model.py", mend=mend, nni=nni)["YourPruner"]
    models = []

    class Mine(printed):
        def quantize_weight(self, layer_info, weight):
            return torch.zeros_like(weight)

        def preprocess_model(self, model):
            models.append(model)
            model.append(nn.Linear(4, 2))

    model = nn.Sequential(nn.Linear(6, 4))
    quantizer = Mine("your input")
    assert quantizer(model) is model
    assert models == [model]
    assert torch.equal(model(torch.randn(5, 6)), model[1].bias.expand(5, 2))
