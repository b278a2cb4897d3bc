import json

import numpy as np
import pytest
import torch
from torch import nn

import lilliput
from lilliput.errors import ConfigError
from lilliput.quantization.bnn import BNNQuantizer, BNNRule, binarize
from lilliput.torch import LevelPruner, QuantGrad, QuantType

ALL = ["weight", "input", "output"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_binarize_is_the_sign_with_one_for_zero(dtype):
    x = torch.tensor([-3.0, -1e-7, -0.0, 0.0, 1e-7, float("inf"), float("-inf")], dtype=dtype)
    expected = np.where(x.double().numpy() >= 0, 1.0, -1.0)
    assert binarize(x).dtype == dtype
    np.testing.assert_array_equal(binarize(x).double().numpy(), expected)
    assert bool(binarize(torch.tensor(float("nan"), dtype=dtype)).isnan())


@pytest.mark.parametrize("quant_types", [["weight"], ["input"], ["output"], ALL])
def test_a_layer_computes_with_signs(quant_types):
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    weight, bias, x = model.weight.detach().clone(), model.bias.detach(), torch.randn(8, 6)
    BNNQuantizer(model, [{"quant_types": quant_types}]).compress()
    if "weight" in quant_types:
        weight = binarize(weight)
    expected = nn.functional.linear(binarize(x) if "input" in quant_types else x, weight, bias)
    expected = binarize(expected) if "output" in quant_types else expected
    assert torch.equal(model(x), expected)


def test_the_gradient_stops_where_an_activation_is_beyond_one_but_not_for_weights():
    torch.manual_seed(0)
    model = nn.Linear(6, 5, bias=False)
    with torch.no_grad():
        model.weight.mul_(20)
    raw = model.weight
    BNNQuantizer(model, [{"quant_types": ALL}]).compress()
    x = torch.randn(64, 6, requires_grad=True)
    upstream = torch.randn(64, 5)
    before = nn.functional.linear(binarize(x), binarize(raw)).detach()
    model(x).backward(upstream)
    inner = torch.where(before.abs() <= 1, upstream, 0.0)
    assert 0 < int((before.abs() > 1).sum()) < before.numel()
    torch.testing.assert_close(raw.grad, inner.T @ binarize(x.detach()))
    expected = torch.where(x.abs() <= 1, inner @ binarize(raw.detach()), 0.0)
    torch.testing.assert_close(x.grad, expected)


def test_another_gradient_may_be_set():
    class Straight(BNNQuantizer):
        quant_grad = QuantGrad

    model = nn.Identity()
    Straight(model, [{"op_types": ["Identity"], "quant_types": ["output"]}]).compress()
    x = torch.tensor([5.0], requires_grad=True)
    model(x).backward()
    assert x.grad == 1


@pytest.mark.parametrize("has_optimizer", [True, False])
@pytest.mark.parametrize("clip_weights", [True, False])
def test_float_weights_are_clipped_after_each_step(clip_weights, has_optimizer):
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    quantizer = BNNQuantizer(
        model, None, optimizer if has_optimizer else None, clip_weights=clip_weights
    )
    quantizer.compress()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()
        if not has_optimizer:
            quantizer.step()
    (wrapper,) = quantizer.get_modules_wrapper()
    largest = float(wrapper.weight.detach().abs().max())
    assert largest == 1 if clip_weights else largest > 1
    assert float(model.bias.detach().abs().max()) > 1, "the bias is left alone"


def test_weights_are_not_clipped_before_a_step_nor_where_they_are_not_quantized():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    for module in model:
        nn.init.constant_(module.weight, 3.0)
    rules = [
        {"op_names": ["0"]},
        {"op_names": ["1"], "quant_types": ["output"]},
        {"op_names": ["2"], "exclude": True},
    ]
    quantizer = BNNQuantizer(model, rules)
    quantizer.compress()
    raw = [module._parameters["weight"].detach() for module in model]
    assert [float(w.max()) for w in raw] == [3, 3, 3]
    quantizer.step()
    assert [float(w.max()) for w in raw] == [1, 3, 3]


@pytest.mark.parametrize("is_pruned_first", [True, False])
def test_pruned_weights_stay_zero_in_training(is_pruned_first):
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    compressors = [
        LevelPruner(model, [{"sparsity": 0.5}], optimizer),
        BNNQuantizer(model, None, optimizer),
    ]
    for compressor in compressors if is_pruned_first else reversed(compressors):
        compressor.compress()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().sum().backward()
        optimizer.step()
        assert sorted(model.weight.unique().tolist()) == [-1, 0, 1]
        assert int((model.weight == 0).sum()) == 50
        assert int((model._parameters["weight"] == 0).sum()) == 50


def test_qparams_say_which_integers():
    model = nn.Linear(6, 5)
    quantizer = BNNQuantizer(model, [{"quant_types": ["weight", "output"]}])
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    held = quantizer.qparams(wrapper, QuantType.WEIGHT)
    assert (held.grid.low, held.grid.high, held.is_result) == (-1, 1, False)
    assert torch.equal(held.to_reals(held.to_integers(model.weight)), model.weight)
    held = quantizer.qparams(wrapper, QuantType.OUTPUT)
    assert (float(held.scale), float(held.zero_point), held.is_result) == (1, 0, True)
    assert quantizer.qparams(wrapper, QuantType.INPUT) is None


def test_the_lists_of_nni_are_read():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Hardtanh(inplace=True))
    rules = [
        {"quant_types": ["weight"], "quant_bits": 1, "op_types": ["Conv2d", "Linear"]},
        {"quant_types": ["output"], "quant_bits": {"output": 1}, "op_types": ["Hardtanh"]},
    ]
    BNNQuantizer(model, rules).compress()
    assert set(model(torch.randn(2, 1, 8, 8)).unique().tolist()) == {-1.0, 1.0}
    assert lilliput.quantizer("BNNQuantizer") is lilliput.quantizer("bnn") is BNNQuantizer


@pytest.mark.parametrize("bits", [0, 2, 8, True, 1.0, "1", {"weight": 2}, {"bias": 1}])
def test_other_bits_than_one_are_refused_at_their_place(bits):
    with pytest.raises(ConfigError, match="rule 0 → quant_bits"):
        BNNQuantizer(nn.Linear(2, 2), [{"quant_bits": bits}])


def test_the_rule_is_in_the_schema_and_survives_being_an_object():
    assert "quant_bits" in json.dumps(lilliput.config_schema("bnn"))
    for rule in (BNNRule(quant_bits=1), BNNRule(quant_types=["output"])):
        quantizer = BNNQuantizer(nn.Linear(2, 2), [rule])
        assert quantizer.get_modules_wrapper()[0].roles == tuple(rule.quant_types)


def test_a_binary_network_learns():
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = (x[:, :4].sum(1) > 0).long()
    model = nn.Sequential(
        *(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Hardtanh()),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Hardtanh(), nn.Linear(64, 2)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rules = [{"op_names": ["3"], "quant_types": ["weight", "input"]}]
    BNNQuantizer(model, rules, optimizer).compress()
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        assert float((model(x).argmax(1) == y).float().mean()) > 0.9


def test_it_compiles_and_an_operation_in_place_may_follow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True))
    BNNQuantizer(model, [{"op_types": ["Linear"], "quant_types": ALL}]).compress()
    x = torch.randn(16, 6)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for each in (model, compiled):
        model.zero_grad()
        output = each(x)
        output.square().sum().backward()
        results.append((output.detach(), model[0].bias.grad.clone()))
    torch.testing.assert_close(results[0], results[1])
