"""The code of the document that describes the framework runs as printed, and does what it says."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def test_level_pruner_prunes_while_the_printed_optimizer_trains(run, train, raw, model):
    namespace = run("004_1_level_pruner.py", torch=torch, model=model)
    assert namespace["model"] is model
    layers = [model.conv1, model.conv2, model.conv3, model.fc]
    zeros = [raw(layer) == 0 for layer in layers]
    for layer, zero in zip(layers, zeros, strict=True):
        assert int(zero.sum()) == round(0.7 * zero.numel())
        assert torch.equal(layer.weight, raw(layer))
    train(model, namespace["optimizer"], 1, 8, 8)
    for layer, zero in zip(layers, zeros, strict=True):
        assert torch.equal(raw(layer) == 0, zero)
        assert not raw(layer).grad[zero].any()
    assert raw(model.fc).grad[~zeros[3]].any()


def test_dorefa_quantizer_computes_with_the_weights_of_the_paper(run, train, raw, model):
    namespace = run("004_2_dorefa_quantizer.py", torch=torch, model=model)
    before = raw(model.fc).detach().clone()
    train(model, namespace["optimizer"], 1, 8, 8)
    for layer in (model.conv1, model.conv2, model.conv3, model.fc):
        squeezed = torch.tanh(raw(layer))
        unit = squeezed / (2 * squeezed.abs().max()) + 0.5
        torch.testing.assert_close(layer.weight, 2 * (unit * 255).round() / 255 - 1)
        assert not torch.equal(layer.weight, raw(layer))
    assert not torch.equal(raw(model.fc), before)


@pytest.fixture
def collecting(run, model):
    """The printed masker that collects, in the printed pruner of the same documentation."""
    from nni.compression.torch import Pruner, WeightMasker

    printed = run("004_3_collecting_masker.py", torch=torch, WeightMasker=WeightMasker)

    class Masker(printed["MyMasker"]):
        def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
            return {"weight_mask": torch.ones_like(wrapper.weight)}

    namespace = run("000_2_my_pruner.py", Pruner=Pruner, MyMasker=Masker)
    config = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
    pruner = namespace["MyPruner"](model, config, torch.optim.SGD(model.parameters(), lr=0.1))
    pruner.compress()
    return pruner


def test_each_wrapper_collects_its_own_activations_once_per_forward(collecting, model):
    wrappers = collecting.get_modules_wrapper()
    assert [w.collected_activation for w in wrappers] == [[], [], []]
    x = torch.randn(2, 1, 8, 8)
    model(x)
    first = F.conv2d(x, model.conv1.weight, model.conv1.bias).relu()
    second = F.conv2d(first, model.conv2.weight, model.conv2.bias).relu()
    third = F.conv2d(second, model.conv3.weight, model.conv3.bias).relu()
    for wrapper, expected in zip(wrappers, (first, second, third), strict=True):
        assert len(wrapper.collected_activation) == 1
        torch.testing.assert_close(wrapper.collected_activation[0], expected.detach())
        assert not wrapper.collected_activation[0].requires_grad
    model(x)
    assert [len(w.collected_activation) for w in wrappers] == [2, 2, 2]


def test_a_removed_collector_is_not_called(run, collecting, model):
    calls = []
    namespace = run(
        "004_4_remove_collector.py",
        self=SimpleNamespace(pruner=collecting),
        collector=lambda wrapper, input_, output: calls.append(wrapper.name),
    )
    assert namespace["collector_id"] != collecting.hook_id
    model(torch.randn(2, 1, 8, 8))
    assert calls == []
    wrappers = collecting.get_modules_wrapper()
    assert [len(w.collected_activation) for w in wrappers] == [1, 1, 1]
    collecting.remove_activation_collector(collecting.hook_id)
    model(torch.randn(2, 1, 8, 8))
    assert [len(w.collected_activation) for w in wrappers] == [1, 1, 1]


def test_wrapper_attributes_are_buffers_if_tensors_and_never_shared(model):
    from nni.compression.torch import LevelPruner

    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.set_wrappers_attribute("seen", torch.zeros(2))
    first, second, *_ = pruner.get_modules_wrapper()
    first.seen += 1
    assert torch.equal(dict(first.named_buffers())["seen"], torch.ones(2))
    assert torch.equal(second.seen, torch.zeros(2))


@pytest.mark.parametrize("name", ["quantize_weight", "quantize_output", "quantize_input"])
def test_the_quantizer_has_the_printed_methods(run, name):
    from nni.compression.torch.compressor import Compressor, Quantizer

    printed = run("004_5_quantizer_methods.py", Compressor=Compressor)["Quantizer"]
    parts = [
        [
            (p.name, p.kind, p.default)
            for p in inspect.signature(getattr(cls, name)).parameters.values()
        ]
        for cls in (printed, Quantizer)
    ]
    assert parts[0] == parts[1]
    for cls in (printed, Quantizer):
        arguments = {"wrapper": None} if name == "quantize_input" else {}
        with pytest.raises(NotImplementedError, match=name):
            getattr(cls(), name)(torch.zeros(1), *([] if arguments else [None]), **arguments)


def test_methods_with_the_printed_signatures_get_tensor_and_wrapper(raw):
    from nni.compression.torch import Quantizer
    from nni.compression.torch.compressor import QuantizerModuleWrapper

    seen = []

    class Mine(Quantizer):
        def quantize_weight(self, weight, wrapper, **kwargs):
            seen.append(wrapper)
            return weight.round()

        def quantize_output(self, output, wrapper, **kwargs):
            seen.append(wrapper)
            return output.round()

        def quantize_input(self, *inputs, wrapper, **kwargs):
            seen.append(wrapper)
            return inputs[0].round()

    model = nn.Linear(6, 4)
    quantizer = Mine(model, [{"quant_types": ["weight", "input", "output"]}])
    quantizer.compress()
    x = torch.randn(5, 6) * 3
    assert torch.equal(model(x), F.linear(x.round(), raw(model).round(), model.bias).round())
    (wrapper,) = quantizer.get_modules_wrapper()
    assert seen == [wrapper] * 3
    assert isinstance(wrapper, QuantizerModuleWrapper)
    assert wrapper.module is model


def test_the_hooks_are_called_at_each_optimizer_step(train):
    from nni.compression.torch import Pruner, Quantizer

    calls = []

    class MyPruner(Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            calls.append("calc_mask")

    class MyQuantizer(Quantizer):
        def quantize_weight(self, weight, config, **kwargs):
            return weight

        def step(self):
            calls.append("step")

    for cls in (MyPruner, MyQuantizer):
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cls(model, None, optimizer).compress()
        calls.clear()
        train(model, optimizer, 6, steps=3)
        assert calls == ["calc_mask" if cls is MyPruner else "step"] * 3
