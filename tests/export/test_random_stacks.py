"""Random stacks of layers: with scales that are powers of two all sums are exact, so files must be."""

import tempfile
from pathlib import Path

import torch
from fixed_quantizer import export, quantized, rule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


def build(seed, widths, kinds):
    torch.manual_seed(seed)
    layers, width = [], 3
    for out, kind in zip(widths, kinds, strict=True):
        groups = width if kind == "depthwise" else 1
        out = width if kind == "depthwise" else out
        layers.append(nn.Conv2d(width, out, 3, padding=1, groups=groups, bias=kind != "no_bias"))
        layers += [nn.ReLU()] if kind in ("relu", "pool") else []
        layers += [nn.MaxPool2d(2)] if kind == "pool" else []
        width = out
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 100),
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    data=st.data(),
)
def test_random_stack_is_exact(seed, widths, data):
    kind = st.sampled_from(["plain", "relu", "pool", "no_bias", "depthwise"])
    model = build(seed, widths, [data.draw(kind) for _ in widths])
    x = torch.randn(2, 3, 8, 8)
    model(x)
    with torch.no_grad():  # biases that are whole multiples of every product of scales
        for module in model:
            if getattr(module, "bias", None) is not None:
                module.bias.copy_((module.bias * 16).round() / 16)
    quantizer = quantized(model, x, [rule(weight=6)], powers=True)
    with tempfile.TemporaryDirectory() as folder:
        result, _ = export(quantizer, Path(folder), x)
    assert {layer.integer for layer in result.layers} == {True}
    assert {found.max_error for found in result.runtimes.values()} == {0.0}
