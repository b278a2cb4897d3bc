"""``dynamic_shapes=``: the user says which sizes are open, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sized_models import Convs, Encoder, assert_same, shapes_of, tokens
from torch import nn
from torch.export import Dim

from lilliput.errors import ExportError
from lilliput.export import export_onnx

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "asked",
    [
        {0: "n", 2: "rows"},
        {"x": {0: "n", 2: "rows"}},
        {"x": {"0": "n", "2": "rows"}},
        {"x": ["n", None, "rows", None]},
        ({0: Dim("n"), 2: Dim("rows", min=4, max=64)},),
    ],
)
def test_axes_are_open_as_asked_in_every_form(tmp_path: Path, asked: Any) -> None:
    model = Convs().eval()
    result = export_onnx(model, tmp_path / "net.onnx", X, dynamic_shapes=asked)
    assert shapes_of(result.path) == {"x": ["n", 3, "rows", 16]}
    assert_same(result.path, model, torch.randn(3, 3, 12, 16))


def test_hints_of_torch_get_names_of_ours(tmp_path: Path) -> None:
    asked = {"x": {0: Dim.DYNAMIC, 2: Dim.AUTO, 3: Dim.DYNAMIC}}
    result = export_onnx(Convs().eval(), tmp_path / "net.onnx", X, dynamic_shapes=asked)
    assert shapes_of(result.path) == {"x": ["batch", 3, "height", "width"]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dynamic_shapes": False}, ["batch", 3, 16, 16]),
        ({"dynamic_batch": False}, [2, 3, "height", "width"]),
        ({"dynamic_batch": False, "dynamic_shapes": False}, [2, 3, 16, 16]),
    ],
)
def test_sizes_can_be_fixed(tmp_path: Path, options: Any, expected: Any) -> None:
    result = export_onnx(Convs().eval(), tmp_path / "net.onnx", X, **options)
    assert shapes_of(result.path) == {"x": expected}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("sequence", r"received 'sequence' for inputs \['input_ids', 'attention_mask'\]; expected"),
        ({"input_id": {0: "batch"}}, "no input 'input_id'; .* Did you mean 'input_ids'"),
        ({"input_ids": {2: "batch"}}, r"'input_ids' has shape \(2, 8\) and no axis 2"),
        ({"input_ids": {0: 1.5}}, r"received 1.5 for axis 0 of 'input_ids'"),
        ({"input_ids": {0: "a", 1: "a"}}, "'a' is 2 in one of the example inputs and 8 in"),
    ],
)
def test_a_wrong_wish_is_explained(tmp_path: Path, asked: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_onnx(Encoder(), tmp_path / "net.onnx", tokens(2, 8), dynamic_shapes=asked)
    assert not list(tmp_path.iterdir())


def test_what_the_model_cannot_leave_open_is_refused_if_it_was_asked_for(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    asked = {0: "batch", 1: "features"}
    with pytest.raises(ExportError, match="features"):
        export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 8), dynamic_shapes=asked)


def test_calibration_of_other_sizes_than_the_file_takes_is_explained(tmp_path: Path) -> None:
    model, inputs = Encoder().eval(), tokens(2, 8)
    others = [tokens(2, 6)]
    with pytest.raises(ExportError, match=r"calibration: 'input_ids' has shape \(2, 6\), the file"):
        export_onnx(model, tmp_path / "net.onnx", inputs, dynamic_shapes=False, calibration=others)
    result = export_onnx(model, tmp_path / "net.onnx", inputs, calibration=others)
    assert result.runtimes["onnxruntime"].sqnr > 60
