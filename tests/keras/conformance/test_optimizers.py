"""Whatever optimizer of Keras trains a model, pruned weights stay zero in the raw variables too."""

import keras
import numpy as np
import pytest

from lilliput.frameworks.keras import lab as keras_lab
from lilliput.frameworks.keras.lab import compiled, outputs, train
from lilliput.keras import LevelPruner
from lilliput.testing.keras import TinyMLP
from lilliput.testing.observe import Watch, entries, expect_finite

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OTHERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}


def is_optimizer(name):
    cls = getattr(keras.optimizers, name)
    is_one = isinstance(cls, type) and issubclass(cls, keras.optimizers.Optimizer)
    return is_one and name not in OTHERS


def multi():
    first, second = keras.optimizers.SGD(0.05, 0.9), keras.optimizers.Adam(0.05)
    return keras.optimizers.MultiOptimizer(lambda v: first if "hidden" in v.path else second)


MAKERS = {
    name: getattr(keras.optimizers, name) for name in dir(keras.optimizers) if is_optimizer(name)
}
MAKERS |= {
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, 0.9)
    ),
    "MultiOptimizer": multi,
    "moving averages": lambda: keras.optimizers.SGD(
        0.05, 0.9, use_ema=True, ema_overwrite_frequency=2, ema_momentum=0.9
    ),
    "accumulated gradients": lambda: keras.optimizers.SGD(0.05, 0.9, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_pruned_weights_stay_zero_with_every_optimizer(make):
    model = TinyMLP()
    optimizer = compiled(model, make())
    train(model, optimizer, 3)  # so that the optimizer remembers all weights
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    watch = Watch(keras_lab, pruner)
    assert all(zeros.sum() == round(zeros.size / 2) for zeros in watch.pruned.values())
    train(model, optimizer, 4)
    watch.expect_zeros("after training")
    watch.expect_training("after training")
    assert all(np.isfinite(entry.raw).all() for entry in entries(keras_lab, pruner))
    expect_finite(outputs(model), "outputs")
