"""Sizes of the inputs are open as far as the model's own code allows, and have names that one knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fixed_quantizer import quantized
from sized_models import Convs, Encoder, assert_same, shapes_of, tokens
from torch import nn

from lilliput.errors import ExportError
from lilliput.export import export_onnx
from lilliput.torch import PTQQuantizer


@pytest.mark.parametrize("is_quantized", [False, True])
def test_images_have_any_height_and_width(tmp_path: Path, is_quantized: bool) -> None:
    torch.manual_seed(0)
    model, x = Convs().eval(), torch.randn(2, 3, 16, 16)
    subject = quantized(model, x) if is_quantized else model
    result = export_onnx(subject, tmp_path / "net.onnx", x)
    assert shapes_of(result.path) == {"x": ["batch", 3, "height", "width"]}
    assert result.sizes == {"batch": "any", "height": "any", "width": "any"}
    if not is_quantized:
        for size in ((16, 16), (9, 12), (33, 20)):
            assert_same(result.path, model, torch.randn(3, 3, *size))


@pytest.mark.parametrize("is_quantized", [False, True])
def test_texts_have_any_length_that_the_model_takes(tmp_path: Path, is_quantized: bool) -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    subject: Any = model
    if is_quantized:
        subject = PTQQuantizer(model, [{"op_types": ["Linear"]}])
        subject.compress()
        subject.calibrate([tokens(2, n) for n in (5, 9, 12)], forward=lambda m, b: m(**b))
    result = export_onnx(subject, tmp_path / "net.onnx", tokens(2, 8))
    both = ["batch", "sequence"]
    assert shapes_of(result.path) == {"input_ids": both, "attention_mask": both}
    for length in (1, 3, 8, 20) if not is_quantized else ():
        assert_same(result.path, model, **tokens(3, length))


def test_sizes_that_the_model_fixes_are_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)).eval()
    result = export_onnx(model, tmp_path / "net.onnx", torch.randn(4, 3, 8, 8))
    assert shapes_of(result.path) == {"input": ["batch", 3, 8, 8]}
    assert result.sizes["height"] == "8 only (the model accepts no other size)"
    assert "sizes: batch any, height 8 only (the model accepts no other size)" in str(result)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 6)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


def test_a_loop_over_the_sequence_fixes_its_length_and_says_so(tmp_path: Path) -> None:
    model, x = Loop().eval(), torch.randn(2, 5, 4)
    result = export_onnx(model, tmp_path / "net.onnx", x)
    assert shapes_of(result.path) == {"x": ["batch", 5, 4]}
    assert result.sizes["sequence"].startswith("5 only")
    assert_same(result.path, model, torch.randn(3, 5, 4))


class Long(nn.Module):
    """Another way for long sequences, which a trace of a short one does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return 2 * y if x.shape[1] > 9 else y


def test_a_branch_on_the_length_fixes_it_and_says_so(tmp_path: Path) -> None:
    model, x = Long().eval(), torch.randn(2, 8, 4)
    result = export_onnx(model, tmp_path / "net.onnx", x)
    assert shapes_of(result.path) == {"x": ["batch", 8, 4]}
    assert "takes another branch there" in result.sizes["sequence"]
    with pytest.raises(ExportError, match=r"for a sequence of \d+ the file does not match"):
        export_onnx(model, tmp_path / "net.onnx", x, dynamic_shapes={0: "batch", 1: "sequence"})


def test_recurrent_layers_take_sequences_of_any_length(tmp_path: Path) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    model = Recurrent().eval()
    result = export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 7, 4))
    assert shapes_of(result.path) == {"x": ["batch", "sequence", 4]}
    assert_same(result.path, model, torch.randn(3, 12, 4))


def test_two_inputs_of_their_own_length_have_names_of_their_own(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return first.sum(1) - second.sum(1)

    inputs = (torch.randn(2, 5, 4), torch.randn(2, 7, 4))
    result = export_onnx(Two(), tmp_path / "net.onnx", inputs)
    found = shapes_of(result.path)
    assert found["first"][1] == "sequence"
    assert found["second"][1] == "second_sequence"


def test_costs_are_those_of_one_example_of_the_given_size(tmp_path: Path) -> None:
    result = export_onnx(Encoder().eval(), tmp_path / "net.onnx", tokens(2, 8))
    assert sum(layer.macs or 0 for layer in result.layers) == 8 * 16 * (16 + 4) + 2 * 8 * 8 * 16
