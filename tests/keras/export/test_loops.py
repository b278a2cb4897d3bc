"""Recurrent layers of Keras in files: listed with what they cost, and said to be in float."""

import keras
import numpy as np
import pytest
from keras import layers

pytest.importorskip("tensorflow")

from lilliput.keras import PTQQuantizer, export_litert, export_onnx

STEPS, INPUTS, UNITS = 5, 6, 8
KINDS = {
    "LSTM": (lambda: layers.LSTM(UNITS, name="rnn"), 4),
    "GRU": (lambda: layers.GRU(UNITS, name="rnn"), 3),
}


def quantized(make):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), make(), layers.Dense(4, name="head")])
    x = np.random.default_rng(0).normal(size=(2, STEPS, INPUTS)).astype("float32")
    quantizer = PTQQuantizer(model, [{"op_types": ["RNNBase", "Dense"]}])
    quantizer.compress()
    quantizer.calibrate([x])
    return quantizer, x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["onnx", "tflite"])
def test_a_recurrent_layer_that_runs_as_a_loop_is_counted_in_float(kind, ending, tmp_path):
    make, gates = KINDS[kind]
    quantizer, x = quantized(make)
    export = export_onnx if ending == "onnx" else export_litert
    result = export(quantizer, tmp_path / f"net.{ending}", x, dynamic_batch=False)
    macs = {layer.name: layer.macs for layer in result.layers}
    recurrent, head = 2 * STEPS * gates * UNITS * (INPUTS + UNITS), 2 * UNITS * 4  # of both rows
    assert macs == {"rnn": recurrent, "head": head}
    held = {layer.name: layer for layer in result.layers}
    assert not held["rnn"].integer and "loop" in held["rnn"].reason
    assert result.receipt.after.macs == (recurrent + head) // 2  # of one
    assert result.integer_share == pytest.approx(head / (recurrent + head))
