"""Batch norms folded into integer weights, and biases as integers."""

import functools
from itertools import product

import numpy as np
import pytest
import torch
from fixed_quantizer import constants, export, operators, quantized, rule
from torch import nn

from lilliput.export.passes.integers import Stored
from lilliput.torch import LSQQuantizer, PTQQuantizer, QATQuantizer

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

onnx_ir = pytest.importorskip("onnx_ir")


def normed(layer, norm, x, **settings):
    """Return a quantized layer with a norm of all kinds of factors behind it."""
    torch.manual_seed(0)
    model = nn.Sequential(layer, norm, nn.ReLU())
    with torch.no_grad():
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
        norm.running_var.uniform_(0.2, 3)
        norm.weight[0], norm.weight[1] = -1.5, 0.0
    name = type(layer).__name__
    rules = [rule(["weight", "input"], op_types=[name]), rule(["output"], op_types=["ReLU"])]
    return quantized(model, x, rules, **settings)


LAYERS = {
    "conv": lambda: (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), torch.randn(2, 3, 8, 8)),
    "no_bias": lambda: (nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), torch.randn(2, 3, 8, 8)),
    "conv1d": lambda: (nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), torch.randn(2, 3, 8)),
    "linear": lambda: (nn.Linear(10, 6), nn.BatchNorm1d(6), torch.randn(4, 10)),
    "transposed": lambda: (nn.ConvTranspose2d(3, 6, 3), nn.BatchNorm2d(6), torch.randn(2, 3, 5, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_norm_is_folded_with_negative_and_zero_factors(tmp_path, kind):
    layer, norm, x = LAYERS[kind]()
    result, graph = export(normed(layer, norm, x), tmp_path, x)
    assert "BatchNormalization" not in operators(graph)
    assert all(found.lsb <= 1.001 for found in result.runtimes.values())
    integers = constants(graph)["0.weight_folded_quantized"][1]
    axis = 1 if kind == "transposed" else 0
    assert not np.take(integers, 1, axis).any()  # the factor of the second channel is zero
    assert (constants(graph)["0.weight_folded_scale"][1] > 0).all()


def test_one_scale_becomes_one_per_channel(tmp_path):
    layer, norm, x = LAYERS["conv"]()
    result, graph = export(normed(layer, norm, x, granularity="per_tensor"), tmp_path, x)
    assert constants(graph)["0.weight_folded_scale"][1].shape == (6,)
    assert all(found.lsb <= 1.001 for found in result.runtimes.values())


def test_norm_behind_a_quantizer_is_not_folded(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), torch.randn(2, 3, 8, 8)
    result, graph = export(quantized(model, x, [rule(op_types=["Conv2d"])]), tmp_path, x)
    assert "BatchNormalization" in operators(graph)
    assert result.layers[0].integer


def test_sign_that_cannot_be_turned_is_not_folded():
    from lilliput.export.passes.fold import scale_channels

    weight = np.array([[-128, 5], [7, -128]])
    ones = np.ones(2, np.float32), np.zeros(2, np.int32)
    stored = Stored(weight, *ones, onnx_ir.DataType.INT8, axis=0)
    assert scale_channels(stored, np.array([-1.0, 1.0]), 0) is None
    assert scale_channels(stored, np.array([1.0, 2.0]), 0) is not None


def test_channel_without_weights_keeps_its_bias(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        model[0].weight[2] = 0
        model[0].bias[2] = 3.0
    result, graph = export(quantized(model, x), tmp_path, x)
    found = constants(graph)
    assert found["0.bias_quantized"][0] == "INT32"
    real = found["0.bias_quantized"][1] * found["0.bias_scale"][1].astype(np.float64)
    assert np.allclose(real, model[0].bias.detach(), atol=1e-4)
    assert result.layers[0].integer and result.runtimes["onnxruntime"].lsb <= 1.001


@pytest.mark.parametrize("faint", [1e-9, *(slow(x) for x in (3e-6, 1e-4))])
def test_faint_filters_with_a_bias_keep_their_layer_on_integers(tmp_path, faint):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 8, 1)
    model, x = nn.Sequential(*layers).eval(), torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        model[0].weight[3] *= faint
        model[1].bias[3] = 2.0
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d"]}])
    quantizer.compress()
    quantizer.calibrate([x])
    result, graph = export(quantizer, tmp_path, x)
    biases = [held for kind, held in constants(graph).values() if kind == "INT32" and held.any()]
    assert sorted(map(len, biases)) == [8, 16]
    assert result.integer_share == 1 and result.runtimes["onnxruntime"].lsb <= 1.001


def test_bias_that_does_not_fit_coarsens_its_own_channel_alone(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), 1e-4 * torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        model[0].weight *= 1e-4
        model[0].bias[:] = torch.tensor([0.0, 0.0, 50.0, 0.0])
        largest = model[0].weight.abs().amax((1, 2, 3)).numpy()
    result, graph = export(quantized(model, x), tmp_path, x, assume_vnni=True)
    found = constants(graph)
    scale = next(held for name, (_, held) in found.items() if name.startswith("0.weight_scale"))
    steps = largest / scale  # what is left of the weights, in steps
    assert np.allclose(np.delete(steps, 2), 63, rtol=1e-5) and steps[2] < 0.01
    assert result.layers[0].integer and result.runtimes["onnxruntime"].lsb <= 1.001


def with_faint_filter(faint, bias):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
    model = nn.Sequential(*layers, nn.Conv2d(16, 16, 1)).eval()
    with torch.no_grad():
        model[0].weight[3] *= faint
        model[1].bias[3] = bias
    return model


QUICK = [(1e-9, PTQQuantizer, 8), (0.0, QATQuantizer, 4), (1e-9, LSQQuantizer, 2)]
EVERY = product(
    [1e-9, 0.0],
    [PTQQuantizer, QATQuantizer, LSQQuantizer],
    [8, 4, {"weight": 4, "input": 8, "output": 8}, 2],
)


@pytest.mark.parametrize(
    ("faint", "quantizer", "bits"),
    [pytest.param(*x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in EVERY],
)
def test_no_layer_leaves_integers_for_a_bias_whatever_quantizes_it(
    tmp_path, quantizer, bits, faint
):
    model, x = with_faint_filter(faint, 0.5), torch.randn(8, 3, 16, 16)
    made = quantizer(model, [{"op_types": ["Conv2d"], "quant_bits": bits}], example_inputs=x)
    made.compress()
    if quantizer is PTQQuantizer:
        made.calibrate([x])
    else:
        model.train()(x).square().mean().backward()
    result, _ = export(made, tmp_path, x)
    assert result.integer_share == 1, result
    assert not [note for note in result.notes if "added in float" in note]
    assert result.runtimes["onnxruntime"].local_lsb <= 1.001


@pytest.mark.parametrize("bias", [0.0, slow(1e-20)])
@pytest.mark.parametrize("gamma", [1.0, 1e-12])
def test_filters_of_nothing_but_zeros_keep_their_layer_on_integers(tmp_path, bias, gamma):
    model, x = with_faint_filter(0.0, bias), torch.randn(8, 3, 16, 16)
    model[1].weight.data[3] = gamma
    made = PTQQuantizer(model, [{"op_types": ["Conv2d"]}], example_inputs=x)
    made.compress()
    made.calibrate([x])
    result, graph = export(made, tmp_path, x)
    assert result.integer_share == 1 and "BatchNormalization" not in operators(graph)
    assert result.runtimes["onnxruntime"].local_lsb <= 1.001


def test_coarse_weights_are_stored_finer_where_the_bias_needs_it(tmp_path):
    """Two bits: a step of input times weight is much larger than a step of the output."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1)), torch.rand(2, 3, 6, 6)
    with torch.no_grad():
        model[0].weight[:, 1:] = 0  # outputs are as small as single products
    bits = {"weight": 2, "input": 2, "output": 5}
    settings = {"quant_types": list(bits), "quant_bits": bits, "op_types": ["Conv2d"]}
    result, graph = export(quantized(model, x, [settings]), tmp_path, x)
    found = constants(graph)
    names = [
        name for name, (kind, _) in found.items() if kind == "INT8" and found[name][1].ndim > 1
    ]
    (weight,) = (found[name][1] for name in names)
    assert set(np.unique(weight)) == {-64, 0, 64}, "one times a power of two"
    assert result.layers[0].integer and result.runtimes["onnxruntime"].local_lsb <= 1.001
