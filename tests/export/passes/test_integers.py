"""What runs is plain integer arithmetic: files against NumPy."""

import numpy as np
import pytest
import torch
from fixed_quantizer import constants, execute, export, quantized, rule
from torch import nn


def quantize(x, scale, zero, low=0, high=255):
    return np.clip(np.rint(x / scale) + zero, low, high).astype(np.int64)


def requantize(total, found, weight_scale):
    scale, zero = found["0.output_scale"][1], found["0.output_zero_point"][1]
    factor = found["0.input_scale"][1].astype(np.float64) * weight_scale / scale
    integers = np.clip(np.rint(total * factor) + int(zero), 0, 255)
    return ((integers - int(zero)) * scale).astype(np.float32)


@pytest.mark.parametrize("optimized", [True, False])
def test_conv_equals_integer_reference(tmp_path, optimized):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1)), torch.randn(2, 3, 6, 6)
    result, graph = export(quantized(model, x, powers=True), tmp_path, x)
    found = constants(graph)
    assert found["0.weight_quantized"][0] == "INT8" and found["0.bias_quantized"][0] == "INT32"
    zero = int(found["0.input_zero_point"][1])
    integers = quantize(x.numpy(), found["0.input_scale"][1], zero) - zero
    weight = found["0.weight_quantized"][1].astype(np.int64)
    padded = np.pad(integers, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    total = np.einsum("bchwij,ocij->bohw", windows, weight)
    total += found["0.bias_quantized"][1].astype(np.int64)[:, None, None]
    scale = found["0.weight_scale"][1].astype(np.float64)[:, None, None]
    expected = requantize(total, found, scale)
    assert np.array_equal(execute(result.path, x.numpy(), optimized)[0], expected)
    assert [layer.kernel for layer in result.layers] == ["QLinearConv"]


@pytest.mark.parametrize("shape", [(4, 12), (4, 3, 12)])
def test_linear_equals_integer_reference(tmp_path, shape):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 5)), torch.randn(shape)
    result, graph = export(quantized(model, x, powers=True), tmp_path, x)
    found = constants(graph)
    (name,) = (key for key in found if key.endswith("_quantized") and "weight" in key)
    weight = found[name][1].astype(np.int64)
    weight = weight if "transposed" in name else weight.T
    zero = int(found["0.input_zero_point"][1])
    integers = quantize(x.numpy(), found["0.input_scale"][1], zero) - zero
    total = integers @ weight + found["0.bias_quantized"][1].astype(np.int64)
    scale = found[name.replace("quantized", "scale")][1].astype(np.float64)
    expected = requantize(total, found, scale)
    for optimized in (True, False):
        assert np.array_equal(execute(result.path, x.numpy(), optimized)[0], expected)
    assert [layer.kernel for layer in result.layers] == ["QGemm"]
    assert result.layers[0].macs == 60 * (3 if len(shape) == 3 else 1)


def test_grouped_four_bit_weights_are_packed_and_exact(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(80, 24)), torch.randn(3, 80)
    rules = [rule(["weight"], weight=4)]
    quantizer = quantized(model, x, rules, granularity="per_group", group_size=32)
    result, graph = export(quantizer, tmp_path, x)
    found = constants(graph)
    assert found["0.weight_transposed_quantized"][0] == "INT4"
    assert found["0.weight_transposed_scale"][1].shape == (3, 24)  # groups of 32, 32 and 16
    packed = next(t for t in graph.initializer if t.name == "0.weight_transposed_quantized")
    assert len(packed.raw_data) == 80 * 24 // 2
    assert result.runtimes["onnxruntime_unoptimized"].max_error <= 1e-6
    assert result.runtimes["onnxruntime"].sqnr > 35  # it rounds activations to 8 bits on the fly
    assert result.layers[0].kernel == "MatMulNBits"


@pytest.mark.parametrize(("bits", "kind"), [(3, "INT4"), (5, "INT8"), (12, "INT16")])
def test_weights_get_the_smallest_type(tmp_path, bits, kind):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 6)), torch.randn(3, 16)
    result, graph = export(quantized(model, x, [rule(["weight"], bits)]), tmp_path, x, "generic")
    held, integers = constants(graph)["0.weight_quantized"]
    assert held == kind and np.abs(integers).max() == 2 ** (bits - 1) - 1
    assert result.runtimes["onnxruntime_unoptimized"].max_error <= 1e-6


@pytest.mark.parametrize("target", ["onnxruntime", "generic"])
def test_narrow_activations_are_clipped_exactly(tmp_path, target):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), torch.randn(2, 3, 6, 6)
    quantizer = quantized(model, x, [rule(activation=5, op_types=["Conv2d"])], powers=True)
    wide = 3 * x  # beyond the calibrated range
    result, graph = export(quantizer, tmp_path, wide, target)
    assert [node.op_type for node in graph.node].count("Clip") == 2
    assert all(found.max_error == 0 for found in result.runtimes.values())
    assert result.layers[0].integer == (target == "onnxruntime")


def test_sixteen_bit_activations(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(3, 8)
    result, graph = export(quantized(model, x, [rule(weight=8, activation=16)]), tmp_path, x)
    assert constants(graph)["0.input_zero_point"][0] == "UINT16"
    assert result.runtimes["onnxruntime"].sqnr > 80
    assert result.layers[0].reason == "no integer kernel for uint16"


def test_signed_activations_are_exported_and_noted(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(3, 8)
    quantizer = quantized(model, x, is_signed=True, powers=True)
    result, graph = export(quantizer, tmp_path, x)
    assert constants(graph)["0.input_zero_point"][0] == "INT8"
    assert "signed activations" in result.notes[0]
    assert export(quantizer, tmp_path, x, "generic")[0].notes == []
