"""The numbers of a quantization report, against plain formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError, StageError
from lilliput.torch import NaiveQuantizer, PTQQuantizer, quantization_report


def make() -> tuple[nn.Sequential, list[torch.Tensor], PTQQuantizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    data = [torch.randn(32, 8) for _ in range(3)]
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], "quant_bits": 4}])
    quantizer.compress()
    quantizer.calibrate(data)
    return model, data, quantizer


def test_error_range_and_clipping_of_weights_and_inputs() -> None:
    _, data, quantizer = make()
    report = quantization_report(quantizer, data)
    rows = {(row.layer, row.target): row for row in report.rows}
    weight = quantizer.get_modules_wrapper()[0].weight.detach().double().numpy()
    scale = np.abs(weight).max(1, keepdims=True) / 7
    noise = weight - np.round(weight / scale) * scale
    expected = 10 * math.log10((weight**2).sum() / (noise**2).sum())
    assert rows["0", "weight"].sqnr == pytest.approx(expected, abs=0.01)
    assert rows["0", "weight"].clipped == 0

    inputs = torch.cat(data).double().numpy()
    wrapper = quantizer.get_modules_wrapper()[0]
    step, zero = float(wrapper.input_scale), float(wrapper.input_zero_point)
    low, high = (0 - zero - 0.5) * step, (15 - zero + 0.5) * step
    row = rows["0", "input"]
    assert row.clipped == pytest.approx(((inputs < low) | (inputs > high)).mean())
    assert 0 < row.clipped < 0.1
    assert (row.low, row.high) == pytest.approx((inputs.min(), inputs.max()))
    assert (row.dtype, row.granularity) == ("uint4", "per_tensor")
    assert sum(row.histogram["before"]) == inputs.size
    assert (
        np.count_nonzero(row.histogram["after"]) <= 20
    )  # 16 levels, a few next to the edge of a bin


def test_the_output_is_compared_with_the_float_model() -> None:
    model, data, quantizer = make()
    report = quantization_report(quantizer, data)
    quantized = torch.cat([model(x) for x in data]).double()
    quantizer.strip()
    plain = torch.cat([model(x) for x in data]).double()
    expected = 10 * torch.log10(plain.square().sum() / (quantized - plain).square().sum())
    assert report.output_sqnr == pytest.approx(float(expected.detach()), abs=1e-3)


def test_as_text_and_as_json(tmp_path: Path) -> None:
    _, data, quantizer = make()
    report = quantization_report(quantizer, data)
    assert len(str(report).splitlines()) == 1 + len(report.rows) + 1
    report.save(tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text())
    assert [row["layer"] for row in content["tensors"]] == ["0", "0", "2", "2"]
    assert report.worst(1)[0].sqnr == min(row.sqnr for row in report.rows)


def test_an_algorithm_without_grids_is_reported_all_the_same() -> None:
    model = nn.Linear(4, 4)
    quantizer = NaiveQuantizer(model, [{"quant_bits": 4}])
    quantizer.compress()
    (row,) = quantization_report(quantizer, [torch.randn(2, 4)]).rows
    assert row.target == "weight" and row.sqnr > 10


def test_bad_calls() -> None:
    _, data, quantizer = make()
    with pytest.raises(ConfigError, match="no batches"):
        quantization_report(quantizer, [])
    quantizer.strip()
    with pytest.raises(StageError, match="compress"):
        quantization_report(quantizer, data)


def test_a_report_is_one_line_at_the_prompt_and_a_table_in_a_notebook():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"]}])
    quantizer.compress()
    batches = [torch.randn(16, 4)]
    quantizer.calibrate(batches)
    report = quantization_report(quantizer, batches)
    assert repr(report).startswith("QuantizationReport(4 tensors of 2 layers; output ")
    assert report._repr_html_().count("<tr>") == 5
