"""ONNX files of Keras models: the same passes and checks as for torch."""

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from models_to_export import (
    RESIDUAL,
    TYPES,
    data,
    layers,
    quantized,
    residual,
    sequential,
    tensorflow_only,
)
from onnx import TensorProto, numpy_helper

from lilliput.errors import ExportError
from lilliput.export import check
from lilliput.keras import LevelPruner, PTQQuantizer, QuantType, export_onnx

pytestmark = tensorflow_only
pytest.importorskip("tf2onnx")
SEVEN = {"quant_bits": {"weight": 7, "input": 8, "output": 8}}  # no CPU saturates


def seven(*rules):
    return [{**rule, **SEVEN} if rule.get("op_types") != ["Add"] else rule for rule in rules]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model, x = residual(), data(8, 12, 12, 3)
    quantizer = quantized(model, x, seven(*RESIDUAL))
    result = export_onnx(quantizer, tmp_path_factory.mktemp("onnx") / "model.onnx", x)
    return quantizer, model, x, result


def constants(path):
    found = onnx.load(path).graph.initializer
    return {
        x.name: (TensorProto.DataType.Name(x.data_type), numpy_helper.to_array(x)) for x in found
    }


def test_all_layers_run_on_integers_within_one_step(exported):
    result = exported[3]
    onnx.checker.check_model(onnx.load(result.path), full_check=True)
    for found in result.runtimes.values():
        assert found.local_lsb <= 1.001
    kernels = {layer.name: layer.kernel for layer in result.layers}
    assert kernels == {
        **dict.fromkeys(("conv", "depthwise", "point"), "QLinearConv"),
        "head": "QGemm",
    }
    assert result.integer_share == 1 and result.notes == []
    kinds = {node.op_type for node in onnx.load(result.path).graph.node}
    assert not {"BatchNormalization", "Mul", "LeakyRelu"} & kinds


def test_scales_are_exactly_those_of_the_quantizer(exported):
    quantizer, model, _, result = exported
    held = constants(result.path)
    wrappers = {wrapper.name: wrapper for wrapper in quantizer.get_modules_wrapper()}
    for name, kind in (("conv", "input"), ("add", "output"), ("head", "output")):
        wanted = quantizer.qparams(wrappers[name], QuantType(kind))
        assert held[f"{name}.{kind}_scale"][1] == np.float32(wanted.scale)
        assert held[f"{name}.{kind}_zero_point"][1] == int(wanted.zero_point)
    norm = model.get_layer("norm")
    factor = np.abs(norm.gamma / np.sqrt(norm.moving_variance + norm.epsilon))
    wanted = np.asarray(quantizer.qparams(wrappers["conv"], QuantType.WEIGHT).scale) * factor
    (found,) = (
        x for name, (_, x) in held.items() if name.startswith("conv.weight") and "scale" in name
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_any_batch_size_runs_by_name(exported):
    model, result = exported[1], exported[3]
    session = onnxruntime.InferenceSession(str(result.path), providers=["CPUExecutionProvider"])
    for size in (1, 5):
        x = data(size, 12, 12, 3, seed=size)
        (received,) = session.run(["output"], {"image": x})
        expected = model(x).numpy()
        assert received.shape == expected.shape
        assert np.abs(received - expected).max() < 0.1 * np.abs(expected).max()


def test_layers_are_compared_on_demand(exported):
    rows = exported[3].compare_layers()
    assert ("conv", "output") in [(row["layer"], row["tensor"]) for row in rows]
    assert all(row["sqnr"] > 30 for row in rows)


def test_weights_are_made_coarser_where_they_would_saturate(tmp_path):
    model, x = sequential((64,), layers.Dense(16, name="dense")), np.abs(data(8, 64))
    model.get_layer("dense").kernel.assign(np.full((64, 16), 0.5))
    quantizer = quantized(model, x)
    (wrapper,) = quantizer.get_modules_wrapper()
    before = float(quantizer.qparams(wrapper, QuantType.WEIGHT).scale[0])
    result = export_onnx(quantizer, tmp_path / "model.onnx", x, assume_vnni=False)
    (row,) = result.guarded
    assert (row.layer, row.channels) == ("dense", 16)
    assert row.worst > 32767 >= row.worst_after
    assert float(quantizer.qparams(wrapper, QuantType.WEIGHT).scale[0]) > before
    assert result.runtimes["onnxruntime"].local_lsb <= 1.001
    assert "weights made coarser" in str(result)
    assert str(result.cpu) == "CPUs without VNNI (assume_vnni=False)"


def test_scales_are_put_back_if_the_export_fails(tmp_path, monkeypatch):
    model, x = sequential((64,), layers.Dense(16, name="dense")), np.abs(data(8, 64))
    model.get_layer("dense").kernel.assign(np.full((64, 16), 0.5))
    quantizer = quantized(model, x)
    (wrapper,) = quantizer.get_modules_wrapper()
    before = np.asarray(quantizer.qparams(wrapper, QuantType.WEIGHT).scale)

    def fail(*args):
        raise ExportError("it differs")

    monkeypatch.setattr(check, "check_file", fail)
    with pytest.raises(ExportError, match="it differs"):
        export_onnx(quantizer, tmp_path / "model.onnx", x, assume_vnni=False)
    assert np.array_equal(before, quantizer.qparams(wrapper, QuantType.WEIGHT).scale)
    assert not list(tmp_path.iterdir())


def test_layers_that_are_left_out_have_their_names(tmp_path):
    model, x = residual(), data(4, 12, 12, 3)
    rules = [*seven({"op_types": TYPES}), {"op_names": ["point"], "exclude": True}]
    result = export_onnx(quantized(model, x, rules), tmp_path / "model.onnx", x)
    (point,) = [layer for layer in result.layers if layer.name == "point"]
    assert point.reason == "its weight is not quantized" and not point.integer


def test_sequences_run_on_integers(tmp_path):
    x = data(4, 10, 6)
    model = sequential(
        (10, 6),
        *(layers.Dense(8), layers.BatchNormalization(), layers.ReLU()),
        *(layers.Conv1D(4, 3, activation="relu"), layers.Dense(5)),
    )
    quantizer = quantized(model, x, seven({"op_types": ["Dense", "Conv1D"]}))
    result = export_onnx(quantizer, tmp_path / "model.onnx", x)
    assert result.integer_share == 1 and result.runtimes["onnxruntime"].local_lsb <= 1.001


def test_attention_is_exported(tmp_path):
    inputs = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    x = layers.LayerNormalization()(layers.Add()([inputs, x]))
    model, batch = keras.Model(inputs, layers.Dense(4, "gelu")(x)), data(2, 6, 8)
    quantizer = quantized(model, batch, seven({"op_types": ["default"]}))
    result = export_onnx(quantizer, tmp_path / "model.onnx", batch)
    kernels = {layer.name: layer.kernel for layer in result.layers}
    assert kernels["attention/query"] == "QLinearMatMul"
    assert result.runtimes["onnxruntime"].local_lsb <= 1.001


def test_recurrent_layers_are_exported(tmp_path):
    model, x = sequential((5, 4), layers.LSTM(6), layers.Dense(3)), data(2, 5, 4)
    quantizer = quantized(model, x, [{"op_types": ["LSTM"]}])
    assert export_onnx(quantizer, tmp_path / "model.onnx", x).runtimes["onnxruntime"].sqnr > 100


def test_generic_files_pack_four_bits(tmp_path):
    model, x = sequential((64,), layers.Dense(32, name="dense")), data(4, 64)
    quantizer = quantized(model, x, [{"quant_bits": {"weight": 4, "input": 8, "output": 8}}])
    result = export_onnx(quantizer, tmp_path / "model.onnx", x, "generic")
    assert constants(result.path)["dense.weight_quantized"][0] == "INT4"


def test_four_bits_in_blocks(tmp_path):
    model, x = sequential((64,), layers.Dense(32, name="dense")), data(4, 64)
    rule = {
        "quant_types": ["weight"],
        "quant_bits": 4,
        "granularity": "per_group",
        "group_size": 16,
    }
    result = export_onnx(quantized(model, x, [rule]), tmp_path / "model.onnx", x)
    assert [layer.kernel for layer in result.layers] == ["MatMulNBits"]


def test_masks_are_zeros_among_the_integers(tmp_path):
    model, x = sequential((32,), layers.Dense(16, name="dense")), data(4, 32)
    LevelPruner(model, [{"sparsity": 0.75}]).compress()
    quantizer = quantized(model, x, seven({"op_types": ["Dense"]}))
    result = export_onnx(quantizer, tmp_path / "model.onnx", x)
    assert (constants(result.path)["dense.weight_quantized"][1] == 0).mean() >= 0.75


def test_float_models_are_exported(tmp_path):
    result = export_onnx(residual(), tmp_path / "model.onnx", data(2, 12, 12, 3))
    assert result.runtimes["onnxruntime"].sqnr > 100
    assert [layer.name for layer in result.layers] == ["conv", "depthwise", "point", "head"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "model.tflite"}, "ending in .onnx"),
        ({"opset": 17}, "expected 21 to 23"),
        ({"target": "onnxruntme"}, "Did you mean 'onnxruntime'"),
        ({"assume_vnni": "maybe"}, "expected True, False or None"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    model = sequential((6,), layers.Dense(4))
    given = {"path": "model.onnx", "example_inputs": data(2, 6), **settings}
    with pytest.raises(ExportError, match=message):
        export_onnx(model, **given)
    assert not list(tmp_path.iterdir())


def test_operations_without_an_onnx_form_are_named(tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.ops.erfinv(keras.ops.tanh(inputs) * 0.5))
    with pytest.raises(ExportError, match="no ONNX form of TensorFlow's Erfinv"):
        export_onnx(model, tmp_path / "model.onnx", data(2, 6))


@pytest.mark.parametrize("is_quantized", [False, True])
def test_tensors_that_a_layer_holds_are_constants(tmp_path, is_quantized):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(3.0, 2.0, (8, 6, 6, 3)).astype("float32")
    adapted = keras.layers.Normalization()
    adapted.adapt(x)
    given = keras.layers.Normalization(mean=[0.0, 1.0, 2.0], variance=[1.0, 2.0, 3.0])
    layers = [adapted, given, keras.layers.Conv2D(4, 3), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((6, 6, 3)), *layers, keras.layers.Dense(2)])
    wanted, what = np.asarray(model(x)), model
    if is_quantized:
        what = PTQQuantizer(model, [{}])
        what.compress()
        what.calibrate([x])
        wanted = np.asarray(model(x))
    path = export_onnx(what, tmp_path / "model.onnx", x).path
    assert [value.name for value in onnx.load(path).graph.input] == [model.inputs[0].name]
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
