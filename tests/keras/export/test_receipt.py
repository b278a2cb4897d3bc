"""The receipt of an exported Keras model compares two files of one format."""

import keras
import pytest
from models_to_export import RESIDUAL, data, quantized, residual

from lilliput.errors import ExportError, WriteError
from lilliput.keras import PTQQuantizer, export_litert, export_onnx

ENDINGS = {"tflite": export_litert, "onnx": export_onnx}


@pytest.fixture(scope="module")
def quantizer():
    keras.utils.set_random_seed(0)
    return quantized(residual(), data(8, 12, 12, 3), RESIDUAL)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_float_side_is_a_float_file_of_the_same_format(quantizer, tmp_path, ending):
    if ending == "onnx":
        pytest.importorskip("tf2onnx")
    export, x = ENDINGS[ending], data(8, 12, 12, 3)
    receipt = export(quantizer, tmp_path / f"small.{ending}", x).receipt
    plain = keras.models.clone_model(quantizer.bound_model)
    plain.set_weights(quantizer.bound_model.get_weights())
    other = export(plain, tmp_path / f"float.{ending}", x)
    assert receipt.before.bytes == pytest.approx(other.bytes, rel=0.05)  # names
    assert receipt.before.runtime == receipt.after.runtime
    assert receipt.before.parameters and receipt.before.macs


def test_a_file_of_integers_only_is_compared_with_a_float_file(quantizer, tmp_path):
    x = data(8, 12, 12, 3)
    whole = export_litert(quantizer, tmp_path / "float_ends.tflite", x).receipt
    given = export_litert(quantizer, tmp_path / "small.tflite", x, io="int8").receipt
    assert given.before.bytes == whole.before.bytes


@pytest.mark.parametrize("kind", [ExportError, WriteError])
def test_without_a_float_file_the_bytes_before_are_left_out_with_a_note(tmp_path, kind):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    x = data(2, 6)
    quantizer = PTQQuantizer(model, [{"op_types": ["Dense"]}])
    quantizer.compress()
    quantizer.calibrate([x])
    result = export_litert(quantizer, tmp_path / "small.tflite", x)

    def refuse(path):
        raise kind("no such operator.")

    result._write_float = refuse
    receipt = result.receipt
    assert receipt.before.bytes is None and receipt.after.bytes == result.bytes
    assert receipt.before.parameters == 6 * 4 + 4
    assert any("no such operator" in note for note in receipt.notes)
    assert "on disk" not in receipt.verdict
