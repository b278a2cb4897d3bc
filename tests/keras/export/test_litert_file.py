"""The whole way to a LiteRT file: models of several kinds, executed, with exactly the trained scales."""

import json

import keras
import numpy as np
import pytest
from models_to_export import (
    RESIDUAL,
    TYPES,
    data,
    execute,
    layers,
    operators,
    quantized,
    residual,
    sequential,
    tensorflow_only,
    tensors,
)

from lilliput.errors import ConfigError
from lilliput.keras import (
    LevelPruner,
    QATQuantizer,
    Quantizer,
    QuantType,
    export_litert,
    litert_latency,
    open_file,
)

pytestmark = tensorflow_only


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model, x = residual(), data(8, 12, 12, 3)
    quantizer = quantized(model, x, RESIDUAL)
    before = model(x).numpy()
    result = export_litert(quantizer, tmp_path_factory.mktemp("litert") / "model.tflite", x)
    assert np.array_equal(before, model(x).numpy())
    return quantizer, model, x, result


def test_all_layers_run_on_integers_within_one_step(exported):
    result = exported[3]
    for found in result.runtimes.values():
        assert found.local_lsb <= 1.001
    assert list(result.runtimes) == ["litert_builtin", "litert"]
    assert {x.name: x.kernel for x in result.layers} == {
        "conv": "CONV_2D int8",
        "depthwise": "DEPTHWISE_CONV_2D int8",
        "point": "CONV_2D int8",
        "head": "FULLY_CONNECTED int8",
    }
    assert result.integer_share == 1
    assert result.notes == ["7 operators on integers, 0 on floats"]
    assert repr(result).startswith("<ExportResult model.tflite: ") and len(repr(result)) < 200
    assert "model.tflite" in result._repr_html_() and "<td" in result._repr_html_()
    assert {kind for kind, dtype in operators(result.path) if dtype == "float32"} == {"DEQUANTIZE"}


def test_scales_are_exactly_those_of_the_quantizer(exported):
    quantizer, model, _, result = exported
    held = tensors(result.path)
    wrappers = {wrapper.name: wrapper for wrapper in quantizer.get_modules_wrapper()}
    activations = [name for name in held if ".input_" in name or ".output_" in name]
    assert len(activations) == 7
    for name in activations:
        layer, kind = name.rpartition("_")[0].rsplit(".", 1)
        wanted = quantizer.qparams(wrappers[layer], QuantType(kind))
        (scale,), (zero,) = (
            held[name]["quantization_parameters"][x] for x in ("scales", "zero_points")
        )
        assert scale == np.float32(wanted.scale)
        assert zero == int(wanted.zero_point) - 128
    norm = model.get_layer("norm")
    factor = np.abs(norm.gamma / np.sqrt(norm.moving_variance + norm.epsilon))
    for layer, folded, repeats in (
        ("conv", factor, 1),
        ("depthwise", 1, 2),
        ("point", 1, 1),
        ("head", 1, 1),
    ):
        found = held[f"{layer}.weight"]["quantization_parameters"]
        wanted = np.asarray(quantizer.qparams(wrappers[layer], QuantType.WEIGHT).scale)
        np.testing.assert_allclose(found["scales"], np.repeat(wanted, repeats) * folded, rtol=1e-6)
        assert not found["zero_points"].any()


def test_any_batch_size_runs(exported):
    model, result = exported[1], exported[3]
    for size in (1, 5):
        x = data(size, 12, 12, 3, seed=size)
        (received,) = execute(result.path, x)
        expected = model(x).numpy()
        assert received.shape == expected.shape
        assert np.abs(received - expected).max() < 0.1 * np.abs(expected).max()


def test_layers_are_compared_on_demand(exported):
    rows = exported[3].compare_layers()
    assert [(row["layer"], row["tensor"]) for row in rows][:2] == [
        ("conv", "input"),
        ("conv", "output"),
    ]
    assert all(row["sqnr"] > 30 and row["lsb"] <= 3.001 for row in rows)
    assert len(exported[3].compare_layers("litert_builtin")) == len(rows) == 7


def test_result_prints_and_is_plain_data(exported):
    result = exported[3]
    assert "4 of 4 layers run on integers, 100.0% of the multiplications" in str(result)
    found = json.loads(json.dumps(result.to_dict()))
    assert found["bytes"] == result.path.stat().st_size
    assert found["target"] == "litert"


def test_file_says_nothing_of_the_machine(exported):
    text = exported[3].path.read_bytes()
    assert b"site-packages" not in text and b"lilliput/export" not in text
    assert b"CONVERSION_METADATA" not in text


def test_inputs_and_outputs_have_their_names(exported):
    from ai_edge_litert.interpreter import Interpreter

    _, model, x, result = exported
    runner = Interpreter(model_path=str(result.path)).get_signature_runner("serving_default")
    assert list(runner.get_input_details()) == ["image"]
    found = runner(image=x)["output"]
    assert np.abs(found - model(x).numpy()).max() < 0.1


def test_latency_is_measured(exported):
    assert 0 < litert_latency(exported[3].path, repeats=3) < 1000


def test_integers_go_in_and_come_out(exported, tmp_path):
    quantizer, model, x, _ = exported
    result = export_litert(quantizer, tmp_path / "model.tflite", x, io="int8")
    assert result.runtimes["litert"].local_lsb <= 1.001
    held = tensors(result.path)
    ends = [held[name] for name in ("image", "output")]
    assert [str(np.dtype(end["dtype"])) for end in ends] == ["int8", "int8"]
    (scale, zero), (step, middle) = (end["quantization"] for end in ends)
    (received,) = execute(
        result.path, np.clip(np.round(x / scale) + zero, -128, 127).astype("int8")
    )
    expected = model(x).numpy()
    assert np.abs((received.astype("float32") - middle) * step - expected).max() <= 2.01 * step
    assert not {"QUANTIZE", "DEQUANTIZE"} & {kind for kind, _ in operators(result.path)}


def test_file_is_about_a_quarter_of_the_float_one(tmp_path):
    x = data(2, 256)
    model = sequential((256,), layers.Dense(256, activation="relu"), layers.Dense(256))
    plain = export_litert(model, tmp_path / "plain.tflite", x)
    small = export_litert(quantized(model, x), tmp_path / "small.tflite", x)
    assert plain.layers[0].reason == "its weight is not quantized" and plain.notes == []
    assert 3.5 < plain.bytes / small.bytes < 4


def test_models_trained_with_quantization_are_exported(tmp_path):
    x, model = data(32, 8), sequential((8,), layers.Dense(16, activation="relu"), layers.Dense(3))
    quantizer = QATQuantizer(model, [{"op_types": ["Dense"]}], example_inputs=x)
    quantizer.compress()
    model.compile("sgd", "mse")
    model.fit(x, data(32, 3), epochs=2, verbose=0)
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert result.integer_share == 1 and result.runtimes["litert"].local_lsb <= 1.001


def test_layers_that_are_left_out_stay_as_they_are(tmp_path):
    # TensorFlow's converter would quantize it, since there are integers before and behind it.
    model, x = residual(), data(4, 12, 12, 3)
    rules = [{"op_types": TYPES}, {"op_names": ["point"], "exclude": True}]
    result = export_litert(quantized(model, x, rules), tmp_path / "model.tflite", x)
    (point,) = [layer for layer in result.layers if layer.name == "point"]
    assert (point.weight_dtype, point.reason) == ("float32", "its weight is not quantized")
    assert result.runtimes["litert"].local_lsb <= 1.001
    assert sum(layer.integer for layer in result.layers) == 3


def test_softmax_has_no_grid_of_its_own(tmp_path):
    model, x = sequential((8,), layers.Dense(4), layers.Softmax()), data(4, 8)
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert ("SOFTMAX", "float32") in operators(result.path)
    assert result.layers[0].integer


def test_joined_tensors_have_the_scale_of_the_result(tmp_path):
    inputs = keras.Input((8, 8, 2))
    left = layers.Conv2D(3, 1, name="left")(inputs)
    right = layers.Conv2D(3, 1, name="right", kernel_initializer="ones")(inputs)
    x = layers.Concatenate(name="joined")([left, right])
    model, batch = keras.Model(inputs, layers.Conv2D(2, 1)(x)), data(4, 8, 8, 2)
    rules = [{"op_types": ["Conv2D"]}, {"op_types": ["Concatenate"], "quant_types": ["output"]}]
    result = export_litert(quantized(model, batch, rules), tmp_path / "model.tflite", batch)
    kinds = operators(result.path)
    assert kinds.count(("QUANTIZE", "int8")) == 3  # the input, and each side once more
    assert ("CONCATENATION", "int8") in kinds
    assert result.integer_share == 1


def test_averages_to_another_grid_are_computed_in_float(tmp_path):
    x = data(4, 8, 8, 2)
    model = sequential(
        (8, 8, 2), layers.Conv2D(3, 1), layers.AveragePooling2D(2), layers.Conv2D(2, 1)
    )
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert ("AVERAGE_POOL_2D", "float32") in operators(result.path)
    assert result.integer_share == 1 and result.runtimes["litert"].local_lsb <= 1.001


def test_sequences_run_on_integers_whatever_their_batch(tmp_path):
    x = data(4, 10, 6)
    model = sequential(
        (10, 6),
        *(layers.Dense(8, activation="relu"), layers.Conv1D(4, 3, activation="relu")),
        *(layers.DepthwiseConv1D(3), layers.Dense(5)),
    )
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert result.integer_share == 1 and result.runtimes["litert"].local_lsb <= 1.001
    macs = [layer.macs for layer in result.layers]
    assert macs == [10 * 6 * 8, 8 * 3 * 8 * 4, 6 * 3 * 4, 6 * 4 * 5]


def test_dilated_and_transposed_convolutions_run_on_integers(tmp_path):
    x = data(4, 8, 8, 3)
    model = sequential(
        (8, 8, 3),
        *(layers.Conv2D(4, 3, dilation_rate=2, padding="same"), layers.ReLU()),
        *(layers.Conv2DTranspose(3, 2, strides=2), layers.Conv2D(4, 3, groups=1, strides=2)),
    )
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert result.integer_share == 1 and result.runtimes["litert"].local_lsb <= 1.001


def test_attention_is_exported(tmp_path):
    inputs = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    x = layers.LayerNormalization()(layers.Add()([inputs, x]))
    model, batch = keras.Model(inputs, layers.Dense(4, "gelu", name="dense")(x)), data(2, 6, 8)
    result = export_litert(quantized(model, batch), tmp_path / "model.tflite", batch)
    assert {layer.name for layer in result.layers} >= {"attention/query", "dense"}
    assert result.runtimes["litert"].local_lsb <= 1.001


def test_recurrent_layers_are_exported_with_one_batch_size(tmp_path):
    model, x = sequential((5, 4), layers.LSTM(6), layers.Dense(3)), data(2, 5, 4)
    quantizer = quantized(model, x)
    result = export_litert(quantizer, tmp_path / "model.tflite", x, dynamic_batch=False)
    assert any("lstm" in note and "float32" in note for note in result.notes)
    assert {layer.op: layer.integer for layer in result.layers} == {
        "FULLY_CONNECTED": True,
        "LSTM": False,
    }


def test_embeddings_are_stored_as_integers(tmp_path):
    x = np.random.default_rng(0).integers(0, 500, (4, 6)).astype("int32")
    inputs = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(500, 64, name="table")(inputs)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalMaxPooling1D()(hidden)))
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert tensors(result.path)["table.weight"]["dtype"] is np.int8
    assert result.bytes < 500 * 64 * 1.5


def test_masks_are_zeros_among_the_integers(tmp_path):
    model, x = sequential((32,), layers.Dense(16, name="dense")), data(4, 32)
    LevelPruner(model, [{"sparsity": 0.75}]).compress()
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(result.path))
    interpreter.allocate_tensors()
    weight = interpreter.get_tensor(tensors(result.path)["dense.weight"]["index"])
    assert (weight == 0).mean() >= 0.75 and result.integer_share == 1


def test_masks_without_a_quantizer_are_in_the_file(tmp_path):
    model, x = sequential((300,), layers.Dense(200, name="dense")), data(2, 300)
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    result = export_litert(pruner, tmp_path / "model.tflite", x)
    assert result.runtimes["litert"].sqnr > 100
    assert [kind for kind, _ in operators(result.path)] == ["FULLY_CONNECTED"]


def test_a_layer_that_is_called_twice_is_stored_once(tmp_path):
    dense, inputs = layers.Dense(64, name="twice"), keras.Input((64,))
    model = keras.Model(inputs, dense(layers.ReLU()(dense(inputs))))
    x = data(3, 64)
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert [layer.name for layer in result.layers] == ["twice", "twice_1"]
    assert result.bytes < 2 * 64 * 64
    assert {row["call"] for row in result.compare_layers()} == {0, 1}


class Custom(keras.Model):
    """A subclassed model with named inputs and outputs."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, inputs):
        hidden = self.dense(inputs["x"])
        return {"sum": hidden + inputs["y"], "hidden": hidden}


def test_named_inputs_and_outputs(tmp_path):
    model, x = Custom(), {"x": data(3, 6), "y": data(3, 4, seed=1)}
    model(x)
    quantizer = quantized(model, x, [{"op_types": ["Dense"]}])
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(result.path)).get_signature_runner()
    found, expected = runner(**x), model(x)
    assert set(found) == {"sum", "hidden"}
    for name in found:
        assert np.abs(found[name] - expected[name]).max() < 0.1


def test_nested_models_have_paths(tmp_path):
    inner = sequential((6,), layers.Dense(6, name="dense"))
    inner.name = "block"
    inputs = keras.Input((6,))
    model, x = keras.Model(inputs, layers.Dense(2, name="head")(inner(inputs))), data(3, 6)
    result = export_litert(quantized(model, x), tmp_path / "model.tflite", x)
    assert [layer.name for layer in result.layers] == ["block/dense", "head"]


class Halves(Quantizer):
    """Has no integer grid."""

    def quantize_weight(self, weight, config, **kwargs):
        return keras.ops.round(weight * 2) / 2

    def quantize_output(self, output, config, **kwargs):
        return keras.ops.round(output * 2) / 2


def test_algorithm_without_a_grid_is_exported_as_floats(tmp_path):
    model, x = sequential((6,), layers.Dense(4)), data(3, 6)
    rules = [{"op_types": ["Dense"], "quant_types": ["weight", "output"]}]
    quantizer = quantized(model, x, rules, Halves, placed=False)
    result = export_litert(quantizer, tmp_path / "model.tflite", x)
    assert ("ROUND", "float32") in operators(result.path)
    assert result.layers[0].reason == "the algorithm gives its weight no integer grid"
    assert result.runtimes["litert"].sqnr > 100


def test_example_inputs_may_be_left_out(tmp_path):
    model = sequential((6,), layers.Dense(4))
    assert export_litert(model, tmp_path / "model.tflite").runtimes["litert"].sqnr > 100
    quantizer = quantized(model, data(3, 6))
    assert export_litert(quantizer, tmp_path / "model.tflite").integer_share == 1


def test_inputs_go_by_name_and_by_size(tmp_path):
    first, second = keras.Input((6,), name="j"), keras.Input((6,), name="i")
    joined = keras.layers.Concatenate()([first, second])
    model = keras.Model([first, second], keras.layers.Dense(3)(joined))
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    export_litert(model, tmp_path / "two.tflite", [x, x])
    file, wanted = open_file(tmp_path / "two.tflite"), np.asarray(model([x, 2 * x]))
    np.testing.assert_allclose(file(x, 2 * x), wanted, atol=1e-5)
    np.testing.assert_allclose(file(i=2 * x, j=x), wanted, atol=1e-5)
    with pytest.raises(ConfigError, match=r"takes \['j', 'i'\], received \['k'\]"):
        file(x, k=x)
    # LiteRT itself would read these 4 rows of 9 as 3 rows of 12.
    with pytest.raises(
        ConfigError, match=r"'j' is float32 of shape \[4, 3\], expected .* \[\?, 6\]"
    ):
        file(x[:, :3], x)
    np.testing.assert_allclose(file(x, 2 * x), wanted, atol=1e-5)
