"""LotteryTicketPruner in ``fit``: rounds by its callback, weights and the optimizer's memory go back."""

import keras
import numpy as np
import pytest

from lilliput.keras import LotteryTicketPruner


def test_rounds_go_back_to_the_first_weights_while_fit_trains():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(10, "relu"), keras.layers.Dense(1)]
    )
    first = [np.array(keras.ops.convert_to_numpy(v)) for v in model.trainable_variables]
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).standard_normal((64, 6)).astype("float32")
    pruner = LotteryTicketPruner(
        model, [{"op_types": ["Dense"], "sparsity": 0.5, "prune_iterations": 2}], epochs_per_round=2
    )
    pruner.compress()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            kernel = keras.ops.convert_to_numpy(self.model.layers[0].kernel)
            bias = keras.ops.convert_to_numpy(self.model.layers[0].bias)
            kept = kernel != 0
            is_first = np.array_equal(kernel[kept], first[0][kept]) and np.array_equal(
                bias, first[1]
            )
            momentum = [
                keras.ops.convert_to_numpy(v)
                for v in getattr(self.model.optimizer, "_momentums", [])
            ]
            seen.append((int((~kept).sum()), is_first, not any(m.any() for m in momentum)))

    model.fit(x, x[:, :1], epochs=pruner.epochs, verbose=0, callbacks=[pruner.callback(), Look()])
    middle = round(60 * (1 - 0.5**0.5))
    assert [count for count, _, _ in seen] == [0, 0, middle, middle, 30, 30]
    assert [is_first for _, is_first, _ in seen] == [True, False] * 3
    assert [is_fresh for _, _, is_fresh in seen] == [True, False] * 3
    assert int(model.optimizer.iterations) == 2 * 2  # of the last round


def one_weight(**options):
    """Return a compiled model whose only round of training is over, with a pruner, and data."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4, use_bias=False)])
    model.compile(keras.optimizers.Adam(1e-3, **options), "mse")
    pruner = LotteryTicketPruner(model, [{"sparsity": 0.5, "prune_iterations": 1}], model.optimizer)
    pruner.compress()
    x = np.random.default_rng(0).standard_normal((64, 4)).astype("float32")
    return model, pruner, x


def kernel(model):
    return np.array(keras.ops.convert_to_numpy(model.layers[0].kernel))


def test_the_first_step_of_adam_after_a_round_is_as_long_as_any_first_step():
    model, pruner, x = one_weight()
    pruner.update_epoch(0)
    for _ in range(50):
        model.train_on_batch(x, 5 * x)
    pruner.update_epoch(1)
    before = kernel(model)
    model.train_on_batch(x, 5 * x)
    moved = np.abs(kernel(model) - before)[before != 0]
    np.testing.assert_allclose(moved, 1e-3, rtol=1e-2)  # the learning rate, whatever the gradient


def test_a_round_that_rounds_to_no_new_zeros_goes_back_too():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    pruner = LotteryTicketPruner(model, [{"sparsity": 0.5}], model.optimizer)
    pruner.compress()
    x, first, zeros = np.ones((8, 4), "float32"), kernel(model), []
    for epoch in range(pruner.epochs):
        pruner.update_epoch(epoch)
        now = np.array(keras.ops.convert_to_numpy(model.trainable_variables[0]))
        zeros.append(int((now == 0).sum()))
        np.testing.assert_array_equal(now[now != 0], first[now != 0])
        assert int(model.optimizer.iterations) == 0
        model.train_on_batch(x, x[:, :1])
    assert zeros == [0, 1, 1, 2, 2]


def test_averages_of_weights_start_from_what_a_round_goes_back_to():
    model, pruner, x = one_weight(use_ema=True)
    pruner.update_epoch(0)
    for _ in range(5):
        model.train_on_batch(x, 5 * x)
    pruner.update_epoch(1)
    (average,) = model.optimizer._model_variables_moving_average
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(average), kernel(model))
    model.train_on_batch(x, 5 * x)
    trained = kernel(model)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    np.testing.assert_allclose(kernel(model), trained, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras on torch takes one step at a time"
)
def test_steps_that_come_several_at_a_time_are_counted_across_a_round():
    model, pruner, x = one_weight()
    model.compile(model.optimizer, "mse", steps_per_execution=4, jit_compile=False)
    steps, follow = [], pruner.step
    pruner.step = lambda: (steps.append(1), follow())
    model.fit(x, 5 * x, batch_size=8, epochs=2, verbose=0, callbacks=[pruner.callback()])
    assert len(steps) == 16
