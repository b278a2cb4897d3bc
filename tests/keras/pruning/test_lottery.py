"""LotteryTicketPruner in ``fit``: rounds by its callback, weights and the optimizer's memory go back."""

import keras
import numpy as np

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
    steps = pruner.epochs * 2
    middle = round(60 * (1 - 0.5**0.5))
    assert [count for count, _, _ in seen] == [0, 0, middle, middle, 30, 30]
    assert [is_first for _, is_first, _ in seen] == [True, False] * 3
    assert [is_fresh for _, _, is_fresh in seen] == [True, False] * 3
    assert int(model.optimizer.iterations) == steps
