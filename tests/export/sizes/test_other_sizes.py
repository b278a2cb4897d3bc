"""Sizes at which a model does something else are not lost in the file."""

import numpy as np
import pytest
import torch
from fixed_quantizer import execute, quantized
from torch import nn

from lilliput.errors import ExportError
from lilliput.export import export_onnx
from lilliput.export.sizes import other_sizes


class Branching(nn.Module):
    """A layer, and what a function makes of its output and the number of rows."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(8, 4), function

    def forward(self, x):
        return self.function(self.linear(x), x.shape[0])


def above_six(y, rows):
    return 2 * y if rows > 6 else y


def only_nine(y, rows):
    return 2 * y if rows == 9 else y


def odd(y, rows):
    return 2 * y if rows % 2 else y


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (above_six, r"for 7 rows the file does not match .* traced for \d to 6 rows"),
        (only_nine, r"for 9 rows the file does not match .* traced for Ne\(rows, 9\)"),
        (odd, r"for 1 row the file does not match .* traced for Eq\(Mod\(rows, 2\), 0\)"),
    ],
)
def test_a_branch_on_the_batch_size_is_refused(tmp_path, function, message, is_quantized):
    model, x = Branching(function).eval(), torch.randn(4, 8)
    subject = quantized(model, x) if is_quantized else model
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(subject, tmp_path / "model.onnx", x)
    assert "dynamic_batch=False" in str(caught.value)
    assert not list(tmp_path.iterdir())
    result = export_onnx(subject, tmp_path / "model.onnx", x, dynamic_batch=False)
    assert result.runtimes["onnxruntime"].sqnr > 40


def test_a_branch_that_changes_nothing_is_no_obstacle(tmp_path):
    model = Branching(lambda y, rows: y * 2 if rows > 6 else y + y).eval()
    result = export_onnx(model, tmp_path / "model.onnx", torch.randn(4, 8))
    batch = torch.randn(9, 8)
    (received,) = execute(result.path, batch.numpy())
    np.testing.assert_allclose(received, model(batch).detach().numpy(), atol=1e-5)


def test_sizes_that_the_model_refuses_are_noted(tmp_path):
    model = Branching(lambda y, rows: y.view(-1, 2, 4).sum(1)).eval()
    result = export_onnx(model, tmp_path / "model.onnx", torch.randn(4, 8))
    assert any("refuses batches of 3, 5, 7 rows" in note for note in result.notes)


def test_a_limit_that_is_too_large_to_try_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(other_sizes, "_LARGEST", 10_000)
    model = Branching(lambda y, rows: y if rows < 5000 else -y).eval()
    with pytest.raises(ExportError, match=r"\d to 4999 rows, .* cannot be tested"):
        export_onnx(model, tmp_path / "model.onnx", torch.randn(4, 8))


def test_unchecked_files_say_what_was_not_tried(tmp_path):
    model = Branching(above_six).eval()
    result = export_onnx(model, tmp_path / "model.onnx", torch.randn(4, 8), check=False)
    assert any("to 6 rows; other sizes were not tried" in note for note in result.notes)


class Two(nn.Module):
    def __init__(self, is_compared):
        super().__init__()
        self.linear, self.is_compared = nn.Linear(8, 4), is_compared

    def forward(self, x, y):
        if self.is_compared and x.shape[0] > 5 and y.shape[0] > 5:
            return self.linear(x) - self.linear(y)
        return self.linear(x) + self.linear(y)


def test_two_inputs_share_the_size_and_its_limits(tmp_path):
    inputs = (torch.randn(4, 8), torch.randn(4, 8))
    result = export_onnx(Two(False).eval(), tmp_path / "two.onnx", inputs)
    assert result.notes == []
    with pytest.raises(ExportError, match="for 6 rows .* to 5 rows"):
        export_onnx(Two(True).eval(), tmp_path / "branch.onnx", inputs)


def test_plain_models_try_no_more_sizes_than_one(tmp_path, monkeypatch):
    tried = []
    execute = other_sizes.OtherSizes._try
    monkeypatch.setattr(
        other_sizes.OtherSizes,
        "_try",
        lambda self, sizes: tried.append(sizes) or execute(self, sizes),
    )
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    )
    export_onnx(model.eval(), tmp_path / "model.onnx", torch.randn(4, 3, 8, 8))
    assert tried == [{"batch": 1}]
