"""Training on two devices under ``tf.distribute.MirroredStrategy``: both keep the same masks and ranges."""

import subprocess
import sys

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)

# In a process of its own: TensorFlow divides the CPU into two devices only before it is used.
SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
from lilliput import errors
from lilliput.keras import AGPPruner, QATQuantizer

x = np.random.default_rng(0).standard_normal((32, 8)).astype("float32")

def train(make, inside, has_optimizer):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(16, "relu", name="a"), keras.layers.Dense(3, name="b")]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("adam", "mse")
        optimizer = model.optimizer if has_optimizer else None
        compressor = make(model, optimizer) if inside else None
    compressor = compressor or make(model, optimizer)
    compressor.compress()
    steps, step = [], compressor.step
    compressor.step = lambda: (steps.append(1), step())
    callbacks = [compressor.callback()]
    model.fit(x, x[:, :3], batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
    assert len(steps) == 6, len(steps)
    return model, compressor

def copies(variable):
    first, second = (np.asarray(value) for value in variable.value.values)
    assert np.array_equal(first, second), variable.path
    return first

for inside in (True, False):
    rules = [{"final_sparsity": 0.5, "end_epoch": 2}]
    model, pruner = train(lambda m, o: AGPPruner(m, rules, o), inside, inside)
    for wrapper in pruner.get_wrappers():
        assert copies(wrapper.weight_mask).mean() == 0.5
        assert (copies(wrapper.weight) == 0).mean() == 0.5
    before = model.predict(x, verbose=0)
    pruner.strip()
    assert np.array_equal(model.predict(x, verbose=0), before)

    model, quantizer = train(lambda m, o: QATQuantizer(m, [{}], o), inside, inside)
    ranges = [copies(v) for w in quantizer.get_wrappers() for v in w.variables()]
    assert any(np.any(r != 0) and np.any(r != 1) for r in ranges)
    assert np.allclose(model.predict(x, verbose=0), np.asarray(model(x)), atol=1e-6)

model, pruner = train(lambda m, o: AGPPruner(m, rules, o), True, True)
pruner.add_activation_collector(lambda wrapper, inputs, output: None)
model.make_train_function(force=True)
try:
    model.fit(x, x[:, :3], batch_size=16, verbose=0)
except errors.UnsupportedModelError as error:
    assert "2 devices train together" in str(error)
else:
    raise SystemExit("activations of half a batch were collected")
print("fine")
"""


@pytest.mark.slow
def test_masks_and_ranges_are_the_same_on_both_devices():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-2000:]
    assert "compiled function" not in done.stderr  # no warning of steps that cannot be seen
