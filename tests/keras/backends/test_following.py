"""Compressors follow training however it is done: fit, train_on_batch, loops of one's own."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.errors import ConfigError, StageError, UnsupportedModelError
from lilliput.keras import AGPPruner, CompressionCallback, LevelPruner, Pruner, QATQuantizer

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
Y = np.random.default_rng(1).standard_normal((40, 3)).astype("float32")


class Counting(Pruner):
    """Counts what it is told, and prunes nothing."""

    def __init__(self, *args):
        super().__init__(*args)
        self.steps, self.epochs = 0, []

    def calc_mask(self, wrapper, wrapper_idx=None):
        return None

    def step(self):
        self.steps += 1

    def update_epoch(self, epoch):
        self.epochs.append(epoch)


def make_model(**options):
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu", name="a"), layers.Dense(3, name="b")]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", **options)
    return model


RULES = [{"op_types": ["Dense"]}]


def test_a_callback_follows_epochs_and_steps():
    model = make_model()
    pruner = Counting(model, RULES)
    pruner.compress()
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[pruner.callback()])
    assert (pruner.steps, pruner.epochs) == (15, [0, 1, 2])
    model.fit(X, Y, 8, 5, 0, [CompressionCallback(pruner)], initial_epoch=3)
    assert (pruner.steps, pruner.epochs) == (25, [0, 1, 2, 3, 4])


def test_the_optimizer_is_followed_without_a_callback():
    model = make_model()
    pruner = Counting(model, RULES, model.optimizer)
    pruner.compress()
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert (pruner.steps, pruner.epochs) == (10, [])
    model.train_on_batch(X[:8], Y[:8])
    assert pruner.steps == 11
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[pruner.callback()])
    assert (pruner.steps, pruner.epochs) == (16, [0])  # each step once
    pruner.strip()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert pruner.steps == 16


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs step by step")
def test_several_steps_in_one_execution_are_counted():
    model = make_model(steps_per_execution=2)
    pruner = Counting(model, RULES, model.optimizer)
    pruner.compress()
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert pruner.steps == 10


def test_two_compressors_follow_one_optimizer():
    model = make_model()
    first = Counting(model, RULES, model.optimizer)
    first.compress()
    second = QATQuantizer(model, RULES, model.optimizer)
    second.compress()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert (first.steps, second.current_step) == (5, 5)
    second.strip()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert (first.steps, second.current_step) == (10, 5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a loop of TensorFlow")
@pytest.mark.parametrize("is_graph", [False, True])
def test_a_loop_with_gradient_tape(is_graph):
    import tensorflow

    model, optimizer = make_model(), keras.optimizers.SGD(0.05, momentum=0.9)
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    counter = Counting(model, RULES, None if is_graph else optimizer)
    pruner.compress()
    counter.compress()

    def step():
        with tensorflow.GradientTape() as tape:
            loss = ops.mean(ops.square(model(X, training=True) - Y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = tensorflow.function(step) if is_graph else step
    for _ in range(4):
        run()
        if is_graph:
            counter.step()
    assert counter.steps == 4
    for name in ("a", "b"):
        raw = model.get_layer(name)._kernel.numpy()
        assert (raw == 0).mean() == 0.5


@pytest.mark.skipif(BACKEND != "jax", reason="a loop of JAX")
def test_a_stateless_loop():
    import jax

    model = make_model()
    quantizer = QATQuantizer(model, RULES)
    quantizer.compress()

    @jax.jit
    def loss_of(trained, others):
        outputs, others = model.stateless_call(trained, others, X, training=True)
        return ops.mean(ops.square(outputs - Y)), others

    derive = jax.value_and_grad(loss_of, has_aux=True)
    trained = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]
    losses = []
    for _ in range(20):
        (loss, others), gradients = derive(trained, others)
        trained = [v - 0.05 * g for v, g in zip(trained, gradients, strict=True)]
        losses.append(float(loss))
    for variable, value in zip(model.non_trainable_variables, others, strict=True):
        variable.assign(value)
    assert losses[-1] < losses[0]
    wrapper = quantizer.get_wrappers()[0]
    assert float(wrapper.input_high.value) == pytest.approx(X.max(), rel=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="a loop of torch")
def test_a_loop_of_torch():
    import torch

    model = make_model()
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        (model(X, training=True) - torch.tensor(Y)).square().mean().backward()
        optimizer.step()
    assert float((model.get_layer("a")._kernel.value == 0).float().mean()) == 0.5


class Plain(keras.Model):
    """A model whose call knows nothing of training."""

    def __init__(self):
        super().__init__()
        self.a, self.b = layers.Dense(8, name="a"), layers.Dense(3, name="b")

    def call(self, x):
        return self.b(ops.relu(self.a(x)))


def test_ranges_are_learned_in_a_model_without_a_training_argument():
    model = Plain()
    model(X[:1])
    model.compile("sgd", "mse")
    before = model.predict(X, verbose=0)
    quantizer = QATQuantizer(model, RULES, example_inputs=X[:1])
    quantizer.compress()
    model.evaluate(X, Y, verbose=0)
    wrapper = quantizer.get_wrappers()[0]
    assert not wrapper.input_is_known  # inference teaches nothing
    model.fit(X, Y, batch_size=40, epochs=1, verbose=0)
    high = float(np.asarray(ops.convert_to_numpy(wrapper.input_high)))
    assert high == pytest.approx(X.max(), rel=1e-5)
    quantizer.strip()
    assert model._call_has_training_arg is False
    assert before.shape == model.predict(X, verbose=0).shape


def test_inference_that_was_compiled_before_sees_what_training_learned():
    model = make_model()
    quantizer = QATQuantizer(model, [{"op_types": ["Dense"], "quant_bits": 2}])
    quantizer.compress()
    model.predict(X, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)
    eager = ops.convert_to_numpy(ops.stop_gradient(model(X, training=False)))
    np.testing.assert_allclose(model.predict(X, verbose=0), eager, atol=1e-6)
    loss = float(np.mean((eager - Y) ** 2))
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(loss, rel=1e-4)


def test_quantization_that_begins_later_reaches_the_compiled_step():
    model = make_model()
    rule = {"op_types": ["Dense"], "quant_bits": 2}
    quantizer = QATQuantizer(model, [rule], model.optimizer, quant_start_step=5)
    quantizer.compress()
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    plain = ops.convert_to_numpy(ops.stop_gradient(model(X, training=False)))
    np.testing.assert_allclose(model.predict(X, verbose=0), plain, atol=1e-6)
    assert (
        len(np.unique(ops.convert_to_numpy(ops.stop_gradient(model.layers[0].kernel))[:, 0])) <= 3
    )


def test_masks_follow_the_epochs_in_a_compiled_model():
    model = make_model()
    pruner = AGPPruner(model, [{"final_sparsity": 0.75, "end_epoch": 2}])
    pruner.compress()
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            mask = pruner.get_wrappers()[0].weight_mask
            seen.append(1 - float(ops.convert_to_numpy(ops.mean(mask))))

    model.fit(X, Y, batch_size=8, epochs=4, verbose=0, callbacks=[pruner.callback(), Watch()])
    assert seen == pytest.approx([0, 0.65625, 0.75, 0.75], abs=0.02)
    compiled = model.predict(X, verbose=0)
    pruner.strip()
    assert (ops.convert_to_numpy(model.layers[0].kernel) == 0).mean() == 0.75
    np.testing.assert_allclose(model.predict(X, verbose=0), compiled, atol=1e-6)


def test_what_cannot_be_followed_is_refused():
    model = make_model()
    with pytest.raises(ConfigError, match="expected a keras.optimizers.Optimizer"):
        LevelPruner(model, [{"sparsity": 0.5}], "adam")
    other = make_model()
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ConfigError, match="contains none of the weights"):
        LevelPruner(model, [{"sparsity": 0.5}], other.optimizer)
    with pytest.raises(StageError, match="before a model was bound"):
        LevelPruner(config_list=[{"sparsity": 0.5}]).callback()


def test_a_model_that_is_not_built_is_refused():
    model = keras.Sequential([layers.Dense(3)])
    with pytest.raises(UnsupportedModelError, match="not built"):
        LevelPruner(model, [{"sparsity": 0.5}])


def test_a_callback_for_another_model_is_refused():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(4, name="a")], name="inner")
    outer = keras.Sequential([keras.Input((6,)), inner, layers.Dense(3, name="b")], name="outer")
    outer.compile("sgd", "mse")
    pruner = LevelPruner(inner, [{"sparsity": 0.5}])
    pruner.compress()
    with pytest.raises(StageError, match="'inner', but fit trains 'outer'"):
        outer.fit(X, Y, verbose=0, callbacks=[pruner.callback()])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a graph of TensorFlow")
def test_steps_in_a_graph_of_ones_own_are_said_to_be_unseen(caplog):
    import tensorflow

    model, optimizer = make_model(), keras.optimizers.SGD(0.05)
    Counting(model, RULES, optimizer).compress()

    @tensorflow.function
    def step():
        with tensorflow.GradientTape() as tape:
            loss = ops.mean(ops.square(model(X, training=True) - Y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step()
    assert "call the compressor's step()" in caplog.text


def test_a_copy_of_a_compressed_model_is_plain():
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(4, name="a"), layers.BatchNormalization(name="n")]
    )
    model.compile("sgd", "mse")
    LevelPruner(model, [{"sparsity": 0.5}], model.optimizer).compress()
    clone = keras.models.clone_model(model)
    assert type(clone.layers[0]) is layers.Dense
    clone.compile("sgd", "mse")
    clone.fit(X, np.zeros((40, 4)), verbose=0)
    moved = ops.convert_to_numpy(clone.layers[1].moving_mean)
    assert np.abs(moved).max() > 0  # it knows of training


def test_a_callback_with_nothing_to_follow_is_refused():
    model = make_model()
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(StageError, match="before compress"):
        model.fit(X, Y, verbose=0, callbacks=[pruner.callback()])
    pruner.compress()
    pruner.strip()
    with pytest.raises(StageError, match="after strip"):
        model.fit(X, Y, verbose=0, callbacks=[pruner.callback()])


def test_the_list_of_weights_is_that_of_the_plain_model():
    model = make_model()
    before, count = model.get_weights(), model.count_params()
    pruner = AGPPruner(model, [{"final_sparsity": 0.75, "end_epoch": 1}])
    pruner.compress()
    assert model.count_params() == count
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[pruner.callback(), stop])
    model.set_weights(before)  # masks are no weights: they stay
    pruner.strip()
    assert (model.get_weights()[0] == 0).mean() == 0.75


def test_masks_may_be_booleans_of_any_kind():
    class Small(Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            return ops.abs(wrapper.weight) > 0.2

    model = make_model()
    Small(model, RULES).compress()
    kernel = ops.convert_to_numpy(ops.stop_gradient(model.layers[0].kernel))
    assert 0 < (kernel == 0).sum() < kernel.size
    assert np.abs(kernel[kernel != 0]).min() > 0.2


def test_averages_of_weights_survive_stripping():
    model = make_model()
    model.compile(keras.optimizers.Adam(use_ema=True), "mse")
    pruner = LevelPruner(model, [{"sparsity": 0.5}], model.optimizer)
    pruner.compress()
    model.fit(X, Y, epochs=2, verbose=0)
    before = model.predict_on_batch(X)
    pruner.strip()  # on JAX, Keras has given away the buffers of the averages
    assert not pruner.is_wrapped
    assert np.array_equal(model.predict_on_batch(X), before)
