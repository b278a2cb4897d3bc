"""What is refused, and that nothing is left behind."""

import keras
import numpy as np
import pytest
from models_to_export import TYPES, data, layers, quantized, residual, sequential, tensorflow_only

from lilliput.errors import ExportError, StageError
from lilliput.export.keras.litert import check
from lilliput.keras import PTQQuantizer, export_litert

pytestmark = tensorflow_only


@pytest.fixture(scope="module")
def plain():
    return sequential((6,), layers.Dense(4, name="dense"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "model.onnx"}, "ending in .tflite"),
        ({"path": "nowhere/model.tflite"}, "folder that does not exist"),
        ({"path": 3}, "expected a string"),
        ({"io": "uint8"}, "expected 'float' or 'int8'"),
        ({"min_sqnr": "high"}, "expected a number of dB"),
        ({"calibration": 5}, "expected a list of inputs"),
        ({"example_inputs": "text"}, "expected arrays"),
        ({"example_inputs": ()}, "received nothing"),
        ({"example_inputs": np.ones((2, 7))}, "does not run on the example inputs"),
        ({"example_inputs": np.full((2, 6), np.nan)}, "NaN or infinity"),
    ],
)
def test_wrong_arguments_are_explained(plain, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    given = {"path": "model.tflite", "example_inputs": data(2, 6), **settings}
    with pytest.raises(ExportError, match=message):
        export_litert(plain, **given)
    assert not list(tmp_path.iterdir())


def test_things_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(ExportError, match=r"expected a compressor or a keras\.Model"):
        export_litert(layers.Dense(3), tmp_path / "model.tflite")
    unbuilt = keras.Sequential([layers.Dense(3)])
    with pytest.raises(ExportError, match="not built yet"):
        export_litert(unbuilt, tmp_path / "model.tflite")


def test_a_quantizer_that_is_not_at_work_is_refused(plain, tmp_path):
    quantizer = PTQQuantizer(plain, [{"op_types": ["Dense"]}])
    with pytest.raises(ExportError, match="call compress"):
        export_litert(quantizer, tmp_path / "model.tflite")


def test_ranges_have_to_be_known(tmp_path):
    model = sequential((6,), layers.Dense(4))
    quantizer = PTQQuantizer(model, [{"op_types": ["Dense"]}])
    quantizer.compress()
    with pytest.raises(StageError, match="not known yet"):
        export_litert(quantizer, tmp_path / "model.tflite", data(2, 6))


def test_half_precision_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, dtype="mixed_float16")])
    with pytest.raises(ExportError, match="computes in float16"):
        export_litert(model, tmp_path / "model.tflite", data(2, 6))


def test_operators_that_litert_does_not_know_are_named(tmp_path):
    model = sequential((8, 8, 8, 2), layers.MaxPooling3D(2), layers.Flatten(), layers.Dense(3))
    with pytest.raises(ExportError, match="'MaxPool3D'"):
        export_litert(model, tmp_path / "model.tflite", data(2, 8, 8, 8, 2))


def test_integers_need_quantized_ends(tmp_path):
    model, x = sequential((6,), layers.Dense(4), layers.Softmax()), data(2, 6)
    path = tmp_path / "model.tflite"
    with pytest.raises(ExportError, match="output 'output' is not quantized"):
        export_litert(quantized(model, x), path, x, io="int8")
    with pytest.raises(ExportError, match=r"read in floating point.*quantize the 'input'"):
        export_litert(sequential((6,), layers.Dense(4)), path, x, io="int8")
    assert not path.exists()


def test_inputs_that_cannot_be_made_up_have_to_be_given(tmp_path):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layers.Dense(3)(inputs))
    with pytest.raises(ExportError, match="pass example_inputs"):
        export_litert(model, tmp_path / "model.tflite")


def test_a_file_that_differs_is_refused_with_the_layer_that_does(tmp_path, monkeypatch):
    model, x = residual(), data(4, 12, 12, 3)
    quantizer = quantized(model, x, [{"op_types": TYPES}])
    run = check.run

    def spoiled(data, inputs, runtime):
        found = run(data, inputs, runtime)
        for array in found[2:3]:  # the second of the quantized activations
            array += np.where(array < 100, 3, -3).astype(array.dtype)
        return found

    monkeypatch.setattr(check, "run", spoiled)
    path = tmp_path / "model.tflite"
    with pytest.raises(
        ExportError, match=r"of layer '\w+' as executed by litert_builtin is [34] steps"
    ):
        export_litert(quantizer, path, x)
    assert not path.exists()


def test_an_older_file_stays_if_the_export_fails(tmp_path, plain):
    path = tmp_path / "model.tflite"
    path.write_bytes(b"older")
    with pytest.raises(ExportError):
        export_litert(plain, path, np.full((2, 6), np.inf))
    assert path.read_bytes() == b"older"


def test_scales_that_are_too_far_apart_stay_in_float(tmp_path):
    # Behind a ReLU that never fires, nothing was seen but zeros. XNNPACK fails on such a layer.
    model = sequential((6,), layers.Dense(4, activation="relu", name="dead"), layers.Dense(3))
    model.get_layer("dead").bias.assign([-100.0] * 4)
    x = data(4, 6)
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert result.layers[0].reason == "its scales are too far apart for integer kernels"


def test_the_check_may_be_left_out(tmp_path, plain):
    result = export_litert(plain, tmp_path / "model.tflite", data(2, 6), check=False)
    assert result.runtimes == {} and result.path.exists() and result.compare_layers() == []
