"""Movement pruning in a compiled ``fit``, against a loop in NumPy."""

import keras
import numpy as np
import pytest

from lilliput.keras import MovementPruner

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROWS, STEPS, WARM, COOL = 6, 8, 1, 6


def growth(step):
    return 0 if step < WARM else 1 - (1 - (min(step, COOL) - WARM) / (COOL - WARM)) ** 3


@pytest.mark.parametrize(("mode", "asked", "regular"), [("hard", 0.5, 2.0), ("soft", 0.49, 6.0)])
def test_a_compiled_fit_is_the_loop_of_the_formula(mode, asked, regular):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * ROWS, 5)).astype("float32")
    y = generator.normal(size=(STEPS * ROWS, 4)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, use_bias=False)])
    weight = np.array(model.layers[0].kernel).astype("float64")
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, "mse")
    pruner = MovementPruner(
        model,
        [{"sparsity": asked}],
        optimizer,
        WARM,
        COOL,
        movement_mode=mode,
        regular_scale=regular,
    )
    pruner.compress()
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    score, mask = np.zeros_like(weight), np.ones_like(weight)
    for step in range(1, STEPS + 1):
        part = slice((step - 1) * ROWS, step * ROWS)
        dense = x[part].T @ (x[part] @ (weight * mask) - y[part]) * 2 / (ROWS * 4)
        share = 1 / (1 + np.exp(-score))
        pull = regular * growth(step - 1) * share * (1 - share) / mask.size
        weight, score = weight - 0.1 * dense * mask, score - 0.1 * (dense * weight + pull)
        if mode == "hard":
            mask = np.ones(mask.size)
            mask[np.argsort(score, axis=None)[: round(20 * asked * growth(step))]] = 0
            mask = mask.reshape(weight.shape)
        else:
            mask = (1 / (1 + np.exp(-score)) > asked * growth(step)).astype(float)
    wrapper = pruner.get_modules_wrapper()[0]
    np.testing.assert_allclose(np.array(wrapper.movement_score), score, atol=1e-5)
    np.testing.assert_array_equal(np.array(wrapper.weight_mask), mask)
    np.testing.assert_allclose(np.array(wrapper.weight), weight, atol=1e-5)
    assert 0 < mask.sum() < 20, "the test needs a mix"
    np.testing.assert_allclose(np.array(pruner.strip().layers[0].kernel), weight * mask, atol=1e-5)
