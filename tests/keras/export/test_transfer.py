"""Models of Keras on JAX and torch are exported in a process with TensorFlow; from TensorFlow, too."""

import keras
import numpy as np
import pytest
from models_to_export import data, layers, quantized, sequential

from lilliput.errors import ExportError, MissingExtraError, StageError
from lilliput.export.arguments import OnnxSettings
from lilliput.export.keras import transfer
from lilliput.export.keras.litert_file import LiteRTSettings
from lilliput.export.keras.transfer import ExportTask, export_elsewhere
from lilliput.frameworks.keras.export.simulation import as_inputs
from lilliput.keras import LevelPruner, PTQQuantizer, Quantizer, export_litert

LITERT = LiteRTSettings(io="float", dynamic_batch=True, check=True, min_sqnr=30.0)
ONNX = OnnxSettings("onnxruntime", dynamic_batch=True, check=True, min_sqnr=30.0, assume_vnni=False)


def export_there(kind, model, place, x, settings, batches=()):
    """Export in the other process, also from TensorFlow."""
    calls = [as_inputs(batch) for batch in batches]
    return export_elsewhere(kind, ExportTask(model, place, as_inputs(x), calls, settings))


@pytest.fixture(scope="module")
def pruned_and_quantized():
    keras.utils.set_random_seed(0)
    model = sequential((8, 8, 2), layers.Conv2D(4, 3, name="conv"), layers.BatchNormalization())
    inputs = model.inputs[0]
    x = layers.Flatten()(layers.ReLU()(model(inputs)))
    model = keras.Model(inputs, layers.Dense(3, name="head")(x))
    batch = data(4, 8, 8, 2)
    LevelPruner(model, [{"op_types": ["Dense"], "sparsity": 0.5}]).compress()
    return model, quantized(model, batch), batch


@pytest.mark.slow
def test_a_litert_file_comes_back_with_its_result(pruned_and_quantized, tmp_path):
    model, _, x = pruned_and_quantized
    place = tmp_path / "model.tflite"
    if keras.backend.backend() == "tensorflow":
        result = export_there("litert", model, place, x, LITERT, [x[:2]])
    else:
        result = export_litert(model, place, x, calibration=[x[:2]])
    assert result.path == place and result.bytes == place.stat().st_size
    assert result.integer_share == 1
    assert [layer.name.rpartition("/")[2] for layer in result.layers] == ["conv", "head"]
    assert result.runtimes["litert"].local_lsb <= 1.001
    assert {row["tensor"] for row in result.compare_layers()} == {"input", "output"}
    from models_to_export import execute

    expected = keras.ops.convert_to_numpy(model(x))
    assert np.abs(execute(place, x)[0] - expected).max() < 0.1 * np.abs(expected).max()


def test_an_onnx_file_comes_back_and_so_do_coarser_scales(tmp_path):
    pytest.importorskip("tf2onnx")
    model, x = sequential((64,), layers.Dense(16, name="dense")), np.abs(data(8, 64))
    model.get_layer("dense").kernel.assign(np.full((64, 16), 0.5))
    quantizer = quantized(model, x)
    (wrapper,) = quantizer.get_modules_wrapper()
    result = export_there("onnx", model, tmp_path / "model.onnx", x, ONNX)
    assert result.cpu is not None and not result.cpu.has_vnni
    assert result.guarded[0].layer == "dense" and result.layers[0].kernel == "QGemm"
    assert float(keras.ops.max(wrapper.weight_coarse)) > 1.1


@pytest.mark.slow
def test_what_is_wrong_there_is_raised_here(tmp_path):
    model, x = sequential((6,), layers.Dense(4)), data(2, 6)
    PTQQuantizer(model, [{"op_types": ["Dense"]}]).compress()
    with pytest.raises(StageError, match="not known yet"):
        export_there("litert", model, tmp_path / "m.tflite", x, LITERT)
    assert not list(tmp_path.iterdir())


def test_a_class_that_cannot_be_imported_is_refused(tmp_path):
    class Local(Quantizer):
        def quantize_weight(self, weight, config, **kwargs):
            return weight

    model, x = sequential((6,), layers.Dense(4)), data(2, 6)
    Local(model, [{"op_types": ["Dense"]}]).compress()
    with pytest.raises(ExportError, match=r"Local cannot be moved there.*KERAS_BACKEND=tensorflow"):
        export_there("litert", model, tmp_path / "m.tflite", x, LITERT)


def test_tensorflow_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "find_spec", lambda name: None)
    model, x = sequential((6,), layers.Dense(4)), data(2, 6)
    with pytest.raises(MissingExtraError, match=r"pip install 'lilliput\[litert\]'"):
        export_there("litert", model, tmp_path / "m.tflite", x, LITERT)


class Unsaved(keras.Model):
    """Has a constructor with an argument, and no get_config()."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError


def test_a_model_that_cannot_be_saved_is_refused(tmp_path):
    model, x = Unsaved(layers.Dense(4)), data(2, 6)
    model(x)
    with pytest.raises(ExportError, match=r"cannot be moved there.*get_config\(\)"):
        export_there("litert", model, tmp_path / "m.tflite", x, LITERT)
