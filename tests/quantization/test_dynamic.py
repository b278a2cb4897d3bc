"""Dynamic quantization of inputs: as ONNX defines it, and refused where no kernel has it."""

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.torch import LSQQuantizer, PTQQuantizer, QATQuantizer, QuantType

RULE = {"op_types": ["Linear"], "observer": "dynamic"}


def dynamic_quantize_linear(x):
    """Return what DynamicQuantizeLinear and DequantizeLinear make of an array, by ONNX's definition."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


@pytest.mark.parametrize("quantizer_type", [PTQQuantizer, QATQuantizer])
def test_every_call_has_its_own_range(quantizer_type):
    torch.manual_seed(0)
    model = nn.Linear(6, 6, bias=False).eval()
    model.weight.data.copy_(torch.eye(6))
    quantizer_type(model, [{**RULE, "quant_types": ["input"]}]).compress()
    for spread in (0.1, 1.0, 30.0):
        x = spread * torch.randn(4, 6)
        with torch.no_grad():
            np.testing.assert_allclose(model(x), dynamic_quantize_linear(x.numpy()), rtol=1e-6)


def test_nothing_has_to_be_calibrated():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    quantizer = PTQQuantizer(model, [RULE], example_inputs=torch.randn(2, 4))
    quantizer.compress()
    first = quantizer.get_modules_wrapper()[0]
    assert quantizer.qparams(first, QuantType.INPUT).grid.is_dynamic
    x = torch.randn(3, 4)
    before = model(x)
    quantizer.calibrate([torch.randn(3, 4)])
    assert torch.equal(model(x), before)


def test_a_layer_with_a_fixed_range_does_not_share_a_dynamic_one():
    torch.manual_seed(0)
    model = nn.ModuleDict({"norm": nn.LayerNorm(8), "a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    model.forward = lambda x: model["a"](y := model["norm"](x)) + model["b"](y)
    rules = [{"op_names": ["a"], "observer": "dynamic"}, {"op_names": ["b"], "observer": "minmax"}]
    quantizer = PTQQuantizer(model, rules, example_inputs=torch.randn(2, 8))
    quantizer.compress()
    quantizer.calibrate([torch.randn(16, 8)])
    a, b = (quantizer.qparams(w, QuantType.INPUT) for w in quantizer.get_modules_wrapper())
    assert (a.grid.is_dynamic, b.grid.is_dynamic) == (True, False)
    assert float(b.scale) < 0.1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"op_types": ["Conv2d"], "quant_types": ["weight", "input"]},
            "for inputs of Linear, MultiheadAttention layers",
        ),
        (
            {"op_types": ["Linear"], "quant_types": ["weight", "output"]},
            "'dynamic' is for inputs; give",
        ),
        ({"op_types": ["Linear"], "quant_scheme": {"input": "symmetric"}}, "has uint8, symmetric"),
        ({"op_types": ["Linear"], "quant_bits": {"weight": 8, "input": 4}}, "has uint4"),
    ],
)
def test_what_no_kernel_has_is_refused(rule, message):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=message):
        PTQQuantizer(model, [{**rule, "observer": "dynamic"}])


def test_learned_scales_are_not_dynamic():
    with pytest.raises(ConfigError, match="needs a PTQQuantizer or QATQuantizer"):
        LSQQuantizer(nn.Linear(4, 4), [RULE])
