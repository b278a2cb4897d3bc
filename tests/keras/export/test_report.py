"""The report of what quantization does to each tensor, on any backend of Keras."""

import math

import numpy as np
import pytest
from models_to_export import data, layers, quantized, sequential

from lilliput.keras import QuantType
from lilliput.report.quantization import quantization_report


def test_error_range_and_clipping():
    model, x = sequential((8,), layers.Dense(16, name="dense"), layers.ReLU()), data(64, 8)
    quantizer = quantized(model, x, [{"op_types": ["Dense"], "quant_bits": 4}])
    report = quantization_report(quantizer, [x[:32], x[32:]])
    rows = {(row.layer, row.target): row for row in report.rows}
    (wrapper,) = quantizer.get_modules_wrapper()
    row = rows["dense", "input"]
    qparams = quantizer.qparams(wrapper, QuantType.INPUT)
    scale, zero = float(qparams.scale), float(qparams.zero_point)
    low, high = (0 - zero - 0.5) * scale, (15 - zero + 0.5) * scale
    assert row.clipped == pytest.approx(((x < low) | (x > high)).mean())
    rounded = (np.clip(np.round(x / scale) + zero, 0, 15) - zero) * scale
    expected = 10 * math.log10((x**2).sum() / ((x - rounded) ** 2).sum())
    assert row.sqnr == pytest.approx(expected, abs=0.01)
    assert (row.dtype, row.granularity, row.bits) == ("uint4", "per_tensor", 4)
    assert rows["dense", "weight"].granularity == "per_channel"
    assert rows["dense", "weight"].clipped == 0
    assert sum(row.histogram["before"]) == x.size
    assert 5 < report.output_sqnr < 40
    assert "output of the model" in str(report)
