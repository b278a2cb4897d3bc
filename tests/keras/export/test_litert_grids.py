"""Grids of all kinds: those that LiteRT can execute are integers, the others exact floats."""

import pytest
from models_to_export import TYPES, data, quantized, residual, tensorflow_only

from lilliput.keras import BNNQuantizer, DoReFaQuantizer, NaiveQuantizer, export_litert

pytestmark = tensorflow_only

EIGHT = {"input": 8, "output": 8}
# rule, how many of four layers run on integers, and how the weights of the first are stored
CASES = {
    "four-bit weights": ({"quant_bits": {"weight": 4, **EIGHT}}, 4, "int8"),
    "four bits": ({"quant_bits": 4}, 4, "int8"),
    "sixteen-bit activations": (
        {"quant_bits": {"weight": 8, "input": 16, "output": 16}},
        0,
        "int8",
    ),
    "one scale": ({"granularity": "per_tensor"}, 4, "int8"),
    "zero points of weights": ({"quant_scheme": {"weight": "affine"}}, 0, "float32"),
    "signed": ({"quant_dtype": "int", "quant_scheme": "symmetric"}, 4, "int8"),
    "signed and narrow": (
        {"quant_dtype": "int", "quant_scheme": "symmetric", "narrow_range": True},
        4,
        "int8",
    ),
    "wide weights": ({"narrow_range": {"weight": False}}, 0, "float32"),
    "weights only": ({"quant_types": ["weight"]}, 0, "int8"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_grid_is_exported_as_simulated(tmp_path, case):
    settings, count, dtype = CASES[case]
    model, x = residual(), data(4, 12, 12, 3)
    quantizer = quantized(
        model, x, [{"op_types": TYPES, **settings}], placed=case != "weights only"
    )
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert sum(layer.integer for layer in result.layers) == count
    assert result.layers[0].weight_dtype == dtype
    assert all(layer.reason for layer in result.layers if not layer.integer)
    for found in result.runtimes.values():
        assert found.local_lsb is None or found.local_lsb <= 1.001


def test_scales_for_groups_of_weights_stay_in_float(tmp_path):
    model, x = residual(), data(4, 12, 12, 3)
    rule = {"granularity": "per_group", "group_size": 4, "quant_types": ["weight"]}
    quantizer = quantized(model, x, [{"op_names": ["head"], **rule}])
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert result.layers[-1].reason == "LiteRT has no scales for groups of weights"
    assert result.runtimes["litert"].sqnr > 100


@pytest.mark.parametrize("cls", [NaiveQuantizer, BNNQuantizer])
def test_weights_of_few_bits_are_stored_in_eight(tmp_path, cls):
    model, x = residual(), data(4, 12, 12, 3)
    quantizer = quantized(model, x, [{"op_types": ["Conv2D"]}], cls, placed=False)
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert [x.weight_dtype for x in result.layers] == ["int8", "float32", "int8", "float32"]
    assert result.runtimes["litert"].sqnr > 100


def test_weights_of_nine_bits_stay_in_float(tmp_path):
    model, x = residual(), data(4, 12, 12, 3)
    rule = {"op_names": ["point"], "quant_types": ["weight", "output"], "quant_bits": 8}
    quantizer = quantized(model, x, [rule], DoReFaQuantizer, placed=False)
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    (point,) = [layer for layer in result.layers if layer.name == "point"]
    assert point.reason == "its weight has 9 bits, LiteRT multiplies 8"
    assert result.runtimes["litert"].local_lsb == 0


def test_activations_of_one_bit_are_exported(tmp_path):
    model, x = residual(), data(4, 12, 12, 3)
    rule = {"op_names": ["depthwise", "point"], "quant_types": ["weight", "output"]}
    quantizer = quantized(model, x, [rule], BNNQuantizer, placed=False)
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert result.runtimes["litert"].local_lsb == 0
