"""Training on two devices at once: both keep the same masks and ranges, and learn the same scales."""

import os
import subprocess
import sys

import keras
import pytest

BACKEND = keras.backend.backend()

# In a process of its own: TensorFlow divides the CPU into two devices only before it is used.
SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
from lilliput import errors
from lilliput.keras import AGPPruner, LSQPlusQuantizer, QATQuantizer

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

    rule = {"quant_types": ["weight", "input"], "quant_bits": 4}
    model, quantizer = train(lambda m, o: LSQPlusQuantizer(m, [rule], o), inside, inside)
    for wrapper in quantizer.get_wrappers():
        learned = {name: copies(v) for name, v in wrapper.learned().items()}
        assert sorted(learned) == ["input_offset", "input_scale", "weight_scale"]
        assert all(np.any(value != 0) for name, value in learned.items() if "scale" in name)
        starts = [copies(start) for start, _ in wrapper._starts.values()]
        assert np.asarray(wrapper.input_scale) > 0
    first = 2 * np.abs(x).mean() / np.sqrt(15)
    start = quantizer.get_wrappers()[0]._starts["input_scale"][0]
    assert 0.5 * first < copies(start) < 2 * first
    assert np.allclose(model.predict(x, verbose=0), np.asarray(model(x)), atol=1e-6)
    quantizer.strip()
    assert len(model.trainable_variables) == len(model.optimizer._trainable_variables) == 4

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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute is TensorFlow's")
@pytest.mark.slow
def test_masks_and_ranges_are_the_same_on_both_devices():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-2000:]
    assert "compiled function" not in done.stderr  # no warning of steps that cannot be seen


JAX_SCRIPT = """
import jax, keras, numpy as np
assert len(jax.devices()) == 2
from lilliput.keras import AGPPruner, LSQPlusQuantizer, QATQuantizer

x = np.random.default_rng(0).standard_normal((32, 8)).astype("float32")
y = x[:, :3]
rules = {
    AGPPruner: {"final_sparsity": 0.5, "end_epoch": 2},
    QATQuantizer: {},
    LSQPlusQuantizer: {"quant_types": ["weight", "input"], "quant_bits": 4},
}

def train(cls):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, "relu", name="a"), keras.layers.Dense(3, name="b")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    compressor = cls(model, [rules[cls]], model.optimizer)
    compressor.compress()
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[compressor.callback()])
    tensors = {(w.name, k): t for w in compressor.get_wrappers() for k, t in w.snapshot()[0].items()}
    devices = {len(v.value.devices()) for v in model.variables}
    return tensors, model.get_weights(), devices

alone = {cls: train(cls) for cls in rules}
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
for cls, (tensors, weights, devices) in alone.items():
    found, values, used = train(cls)
    assert devices == {1} and used == {2}, (cls, devices, used)
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_allclose(found[key], tensor, rtol=1e-4, atol=1e-5, err_msg=f"{cls} {key}")
    for one, two in zip(values, weights):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5, err_msg=str(cls))
print("fine")
"""


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is JAX's")
@pytest.mark.slow
def test_data_parallel_on_jax_gives_what_one_device_gives():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", JAX_SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-2000:]
