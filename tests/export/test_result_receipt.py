"""The receipt of an export compares two files of one format, and counts the same things in both."""

import pytest
import torch
from torch import nn

from lilliput.torch import PTQQuantizer, export_onnx, measure

GROUPS = {"granularity": "per_group", "group_size": 16, "quant_bits": {"weight": 4, "input": 8}}


def exported(folder, **rule):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)), torch.randn(4, 32)
    quantizer = PTQQuantizer(model.eval(), [{"op_types": ["Linear"], **rule}], example_inputs=x)
    quantizer.compress()
    quantizer.calibrate([x])
    return quantizer, x, export_onnx(quantizer, folder / "small.onnx", x)


@pytest.mark.parametrize("rule", [{}, GROUPS], ids=["per_channel", "per_group"])
def test_scales_of_dynamically_quantized_layers_are_no_parameters(tmp_path, rule):
    quantizer, _, result = exported(tmp_path, observer="dynamic", **rule)
    plain = quantizer.bound_model
    count = 32 * 64 + 64 + 64 * 16 + 16
    assert result.receipt.before.parameters == result.receipt.after.parameters == count
    weights = (plain[0].weight, plain[2].weight, plain[0].bias, plain[2].bias)
    assert result.receipt.after.nonzeros == sum(int(x.count_nonzero()) for x in weights)


def test_the_bytes_before_are_those_of_a_float_file_of_the_same_format(tmp_path):
    quantizer, x, result = exported(tmp_path)
    plain = quantizer.strip()
    other = export_onnx(plain, tmp_path / "float.onnx", x)
    before = result.receipt.before
    assert before.bytes == pytest.approx(other.bytes, rel=0.02)
    assert before.bytes > sum(4 * p.numel() for p in plain.parameters())
    found = measure(other.path, x)
    assert (before.parameters, before.nonzeros, before.macs) == (
        *(found.parameters, found.nonzeros),
        found.macs,
    )


def test_a_norm_that_is_folded_is_folded_on_both_sides(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d"]}], example_inputs=x)
    quantizer.compress()
    quantizer.calibrate([x])
    receipt = export_onnx(quantizer, tmp_path / "small.onnx", x).receipt
    assert receipt.before.parameters == receipt.after.parameters == 8 * 27 + 8
