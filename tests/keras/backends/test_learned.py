"""What LSQ learns: gradients by the paper, trained by the model's optimizer, gone with strip()."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.errors import UnsupportedModelError
from lilliput.keras import CompressionState, LSQPlusQuantizer, LSQQuantizer

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RULES = [{"op_types": ["Dense"], "quant_types": ["weight", "input"], "quant_bits": 4}]
X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
X *= np.abs(X)  # so that some are clipped
BIAS = np.random.default_rng(2).standard_normal(8).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((16, 3)).astype(np.float32)


def network():
    """Return a network whose activations are no multiples of one number, so that none is on an edge."""
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(8, "relu", name="a")
    model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(3, name="b")])
    hidden.bias.assign(BIAS)
    return model


def to_numpy(value):
    return ops.convert_to_numpy(value.detach() if hasattr(value, "detach") else value)


def value_of(variable):
    """Return a learned variable of a wrapper as an array."""
    return to_numpy(ops.convert_to_tensor(variable))


def gradients(model, inputs, loss):
    """Return the gradient of ``loss(outputs)`` by the name of each variable, scales included."""
    variables = model.trainable_variables
    backend = keras.backend.backend()
    if backend == "tensorflow":
        with sys.modules["tensorflow"].GradientTape() as tape:
            total = loss(model(inputs, training=True))
        found = tape.gradient(total, variables)
    elif backend == "torch":
        model.zero_grad()
        loss(model(inputs, training=True)).backward()
        found = [variable.value.grad for variable in variables]
    else:

        def compute(values):
            others = [variable.value for variable in model.non_trainable_variables]
            outputs, _ = model.stateless_call(values, others, inputs, training=True)
            return loss(outputs)

        found = sys.modules["jax"].grad(compute)([variable.value for variable in variables])
    return {id(v): to_numpy(gradient) for v, gradient in zip(variables, found, strict=True)}


def squares(outputs):
    return ops.mean(ops.square(ops.subtract(outputs, Y)))


def learned(quantizer, found):
    """Return those of the gradients that are of scales and offsets, by layer and name."""
    return {
        (wrapper.name, name): found[id(variable)]
        for wrapper in quantizer.get_wrappers()
        for name, variable in wrapper.learned().items()
    }


# -- gradients ---------------------------------------------------------------------------------------


def round_to(values, scale, low, high, zero=0.0):
    """Return values on a grid, where they are inside of it, and how they follow the scale."""
    steps = values / scale
    rounded = np.round(steps)
    clipped = np.clip(rounded, low - zero, high - zero)
    inside = clipped == rounded
    return clipped * scale, inside, np.where(inside, clipped - steps, clipped)


def test_gradients_are_those_of_the_paper():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="a")])
    quantizer = LSQQuantizer(model, RULES)
    quantizer.compress()
    model(X, training=True)  # starts the scale of the input
    (wrapper,) = quantizer.get_wrappers()
    weight = to_numpy(model.get_weights()[0]).astype(np.float64)
    scale, step = (value_of(getattr(wrapper, f"{n}_scale")) for n in ("weight", "input"))
    zero = float(to_numpy(wrapper.input_zero_point))
    np.testing.assert_allclose(scale, 2 * np.abs(weight).mean(0) / np.sqrt(7), rtol=1e-6)
    np.testing.assert_allclose(step, 2 * np.abs(X).mean() / np.sqrt(15), rtol=1e-6)
    w, _, weight_slope = round_to(weight, scale, -8, 7)
    x, _, input_slope = round_to(X.astype(np.float64), step, 0, 15, zero)
    for_weight = weight_slope * (x.T @ Y)
    for_input = input_slope * (Y @ w.T)
    found = learned(quantizer, gradients(model, X, lambda out: ops.sum(ops.multiply(out, Y))))
    expected = for_weight.sum(0) / np.sqrt(6 * 7), for_input.sum() / np.sqrt(6 * 15)
    assert np.abs(expected[0]).min() > 1e-3 and abs(expected[1]) > 1e-3
    np.testing.assert_allclose(found["a", "weight_scale"], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["a", "input_scale"], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", [LSQQuantizer, LSQPlusQuantizer])
def test_gradients_are_those_of_torch(cls):
    torch = pytest.importorskip("torch")
    model = network()
    quantizer = cls(model, RULES)
    quantizer.compress()
    model(X, training=True)
    other = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for name, key in (("a", "0"), ("b", "2")):
            layer, kernel = other.get_submodule(key), to_numpy(quantizer_weight(quantizer, name))
            layer.weight.copy_(torch.from_numpy(kernel.T.copy()))
            layer.bias.zero_()
        other[0].bias.copy_(torch.from_numpy(BIAS))
    rules = [{**RULES[0], "op_types": ["Linear"]}]
    second = cls(other, rules, example_inputs=torch.ones(1, 6))
    second.compress()
    other(torch.from_numpy(X))
    found = learned(quantizer, gradients(model, X, lambda out: squares(out)))
    (other(torch.from_numpy(X)) - torch.from_numpy(Y)).square().mean().backward()
    wrappers = dict(zip(("a", "b"), second.get_wrappers(), strict=True))
    assert len(found) == (4 if cls is LSQQuantizer else 6)
    for (layer, name), gradient in found.items():
        expected = getattr(wrappers[layer], name).grad.numpy()
        assert name == "input_offset" or np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def quantizer_weight(quantizer, name):
    return next(wrapper.weight for wrapper in quantizer.get_wrappers() if wrapper.name == name)


# -- optimizers ----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "average": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}


def train(model, steps):
    for _ in range(steps):
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_may_be_built_before_or_after(name):
    results = []
    for is_built in (False, True):
        model = network()
        model.compile(OPTIMIZERS[name](), "mse")
        if is_built:
            model.optimizer.build(model.trainable_variables)
        before = [variable.path for variable in model.optimizer.variables]
        quantizer = LSQQuantizer(model, RULES, model.optimizer)
        quantizer.compress()
        start = [value_of(wrapper.weight_scale) for wrapper in quantizer.get_wrappers()]
        train(model, 3)
        trained = [id(variable) for variable in model.optimizer._trainable_variables]
        assert trained == [id(variable) for variable in model.trainable_variables]
        values = [value_of(w.weight_scale) for w in quantizer.get_wrappers()]
        values += [value_of(w.input_scale) for w in quantizer.get_wrappers()]
        assert all(np.abs(x - y).max() > 1e-5 for x, y in zip(start, values[:2], strict=True))
        results.append([*values, *model.get_weights()])
        quantizer.strip()
        left = [variable.path for variable in model.optimizer.variables]
        assert not any("lilliput" in path for path in left)
        assert not is_built or left == before
        train(model, 1)
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


def test_slots_of_weights_survive_and_scales_are_not_decayed():
    model = network()
    model.compile(keras.optimizers.AdamW(0.0, weight_decay=0.5), "mse")
    train(model, 2)
    optimizer = model.optimizer
    momentum = [to_numpy(slot.value) for slot in optimizer._momentums]
    quantizer = LSQQuantizer(model, RULES, optimizer)
    quantizer.compress()
    kept = [
        slot
        for slot, variable in zip(optimizer._momentums, model.trainable_variables, strict=True)
        if not variable.name.startswith("lilliput")
    ]
    assert len(kept) == 4 < len(optimizer._momentums)
    for slot, before in zip(kept, momentum, strict=True):
        np.testing.assert_array_equal(to_numpy(slot.value), before)
    optimizer.learning_rate = 0.1
    for _, scale in ((w, v) for w in quantizer.get_wrappers() for v in w.learned().values()):
        assert not optimizer._use_weight_decay(scale)
    assert optimizer._use_weight_decay(quantizer.get_wrappers()[0].module._kernel)
    quantizer.strip()
    assert not hasattr(optimizer, "_lilliput_spared")


def test_a_compiled_optimizer_that_nobody_gave_trains_scales_without_decay():
    model = network()
    quantizer = LSQQuantizer(model, RULES)
    quantizer.compress()
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=100.0), "mse")
    before = value_of(quantizer.get_wrappers()[0].weight_scale)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    after = value_of(quantizer.get_wrappers()[0].weight_scale)
    assert 0 < np.abs(after - before).max() < 5e-3  # decay alone would take a tenth of it each step


def test_scales_stay_positive():
    model = network()
    model.compile(keras.optimizers.SGD(20.0, clipvalue=0.05), "mse")
    quantizer = LSQQuantizer(model, RULES, model.optimizer)
    quantizer.compress()
    gradient = gradients(model, X, squares)
    sink = value_of(quantizer.get_wrappers()[0].weight_scale)
    sink = sink - 20 * learned(quantizer, gradient)["a", "weight_scale"].clip(-0.05, 0.05)
    assert sink.min() < 0  # so it would be
    train(model, 3)
    for wrapper in quantizer.get_wrappers():
        assert value_of(wrapper.weight_scale).min() > 0 and value_of(wrapper.input_scale) > 0


def test_scales_wait_for_their_step():
    """Nothing is quantized until then, and Keras has nothing to warn of."""
    model = network()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    quantizer = LSQQuantizer(model, RULES, model.optimizer, quant_start_step=2)
    quantizer.compress()
    weight = to_numpy(model.get_weights()[0])
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)  # two steps
    first = value_of(quantizer.get_wrappers()[0].weight_scale)
    raw = to_numpy(model.get_weights()[0])
    assert np.abs(raw - weight).max() > 1e-4
    np.testing.assert_allclose(first, 2 * np.abs(raw).mean(0) / np.sqrt(7), rtol=1e-5)
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert np.abs(value_of(quantizer.get_wrappers()[0].weight_scale) - first).max() > 1e-6


# -- files and copies ------------------------------------------------------------------------------------


def test_files_are_those_of_the_plain_model(tmp_path):
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    quantizer = LSQQuantizer(model, RULES, model.optimizer)
    quantizer.compress()
    train(model, 2)
    assert len(model.get_weights()) == 4
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert len(plain.optimizer.variables) == 2 + 2 * 4 and len(plain.variables) == 4
    assert int(to_numpy(plain.optimizer.iterations.value)) == 2
    network().load_weights(tmp_path / "model.weights.h5")
    ours = {id(variable): slot for variable, slot in zip(*_momentums(model), strict=True)}
    mine = [ours[id(v)] for v in model.trainable_variables if "lilliput" not in v.name]
    for slot, other in zip(mine, plain.optimizer._momentums, strict=True):
        np.testing.assert_array_equal(to_numpy(slot.value), to_numpy(other.value))


def _momentums(model):
    return model.optimizer._trainable_variables, model.optimizer._momentums


def test_a_state_brings_scales_and_their_momentum(tmp_path):
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    quantizer = LSQPlusQuantizer(model, RULES, model.optimizer)
    quantizer.compress()
    train(model, 3)
    quantizer.state().save(tmp_path / "state")
    model.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    second = LSQPlusQuantizer(other, RULES, other.optimizer)
    second.load_state(CompressionState.load(Path(tmp_path / "state")))  # before compress() as well
    second.compress()
    train(model, 2)
    train(other, 2)
    for one, two in zip(quantizer.get_wrappers(), second.get_wrappers(), strict=True):
        for name in one.learned():
            expected = value_of(getattr(one, name))
            np.testing.assert_allclose(value_of(getattr(two, name)), expected, rtol=1e-5, atol=1e-7)


def test_a_model_around_it_is_not_trained():
    inner = network()
    LSQQuantizer(inner, RULES).compress()
    outer = keras.Sequential([keras.Input((6,)), inner])
    outer.compile("sgd", "mse")
    if keras.backend.backend() == "jax":  # there, the model around it trains the scales as well
        outer.fit(X, Y, verbose=0)
        return
    with pytest.raises(UnsupportedModelError, match="learns scales"):
        outer.fit(X, Y, verbose=0)
