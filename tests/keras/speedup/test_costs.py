"""What Keras models cost: budgets and reports count alike."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.keras import channel_groups
from lilliput.report.measure import measure
from lilliput.report.snapshot import snapshot

STEPS = 5
RECURRENT = {
    "LSTM": (lambda: layers.LSTM(6), 24 * (4 + 6)),
    "GRU": (lambda: layers.GRU(6), 18 * (4 + 6)),
    "SimpleRNN": (lambda: layers.SimpleRNN(6), 6 * (4 + 6)),
    "Bidirectional": (lambda: layers.Bidirectional(layers.LSTM(6)), 2 * 24 * (4 + 6)),
    "stacked": (
        lambda: layers.RNN([layers.LSTMCell(6), layers.GRUCell(7)]),
        24 * (4 + 6) + 21 * (6 + 7),
    ),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_cost_all_their_matrices_at_every_step(name):
    make, per_step = RECURRENT[name]
    given = keras.Input((STEPS, 3))
    hidden = layers.Dense(4, name="front")(given)
    model = keras.Model(given, layers.Dense(2, name="head")(make()(hidden)))
    expected = STEPS * (3 * 4 + per_step) + model.get_layer("head").kernel.shape[0] * 2
    x = np.zeros((2, STEPS, 3), "float32")
    assert channel_groups(model).count_macs() == expected
    assert measure(model, x, runs=0).macs == expected
    assert snapshot(model, x).macs == expected
