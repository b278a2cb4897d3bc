"""Learned thresholds in a compiled ``fit``, against a loop in NumPy."""

import keras
import numpy as np
import pytest

from lilliput.keras import STRPruner

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROWS, STEPS, START, PULL, RATE = 6, 8, -2.0, 0.2, 0.1


def shrunk(weight, logit):
    return np.sign(weight) * np.maximum(np.abs(weight) - 1 / (1 + np.exp(-logit)), 0)


def test_a_compiled_fit_is_the_loop_of_the_formula():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * ROWS, 5)).astype("float32")
    y = generator.normal(size=(STEPS * ROWS, 4)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, use_bias=False)])
    weight, logit = np.array(model.layers[0].kernel).astype("float64"), START
    optimizer = keras.optimizers.SGD(RATE)
    model.compile(optimizer, "mse")
    pruner = STRPruner(model, [{"op_types": ["Dense"]}], optimizer, decay=PULL, start=START)
    pruner.compress()
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    for step in range(STEPS):
        part = slice(step * ROWS, (step + 1) * ROWS)
        seen = shrunk(weight, logit)
        dense = x[part].T @ (x[part] @ seen - y[part]) * 2 / (ROWS * 4)
        share = 1 / (1 + np.exp(-logit))
        slope = -(dense * np.sign(weight) * (seen != 0)).sum() * share * (1 - share)
        weight, logit = (
            weight - RATE * dense * (seen != 0),
            logit - RATE * (slope + PULL * logit),
        )
    seen = shrunk(weight, logit)
    wrapper = pruner.get_modules_wrapper()[0]
    assert float(np.array(wrapper.threshold_logit)) == pytest.approx(logit, abs=1e-5)
    np.testing.assert_allclose(np.array(wrapper.weight), weight, atol=1e-5)
    np.testing.assert_array_equal(np.array(wrapper.weight_mask) != 0, seen != 0)
    assert 0 < int((seen == 0).sum()) < 20, "the test needs a mix"
    np.testing.assert_allclose(np.array(pruner.strip().layers[0].kernel), seen, atol=1e-5)
