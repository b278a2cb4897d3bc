"""Distillation of Keras models: in ``fit`` and loops of one's own, compiled, against plain formulas."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.errors import ConfigError, StageError, StateError
from lilliput.keras import Distiller, LevelPruner, QATQuantizer

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 6, 6, 2)).astype("float32")
Y = RNG.integers(0, 3, 32)


def make(width=5, name="net"):
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(width, 3, name="conv")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Dropout(0.3, name="drop")(layers.ReLU(name="act")(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(3, name="head")(x), name=name)


def array(value):
    return np.array(ops.convert_to_numpy(ops.stop_gradient(ops.convert_to_tensor(value))))


def kl(student, teacher, temperature):
    def logs(x):
        x = x / temperature
        return (
            x
            - x.max(1, keepdims=True)
            - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
        )

    p, q = logs(teacher.astype("float64")), logs(student.astype("float64"))
    return temperature**2 * (np.exp(p) * (p - q)).sum(1).mean()


def attached(model, *args, **kwargs):
    distiller = Distiller(model, *args, **kwargs)
    distiller.compress()
    return distiller


def shake(model):
    kernel = model.get_layer("head").kernel
    kernel.assign(-array(kernel))


def test_loss_of_a_call_in_training_is_the_formula():
    model = make()
    original = array(model(X, training=False))
    distiller = attached(model, [{"temperature": 3.0}, {"op_names": ["conv"], "weight": 2.0}])
    shake(model)
    conv = model.get_layer("conv")
    conv.bias.assign(array(conv.bias) + 1)
    output = array(model(X, training=True))
    received = float(array(distiller.loss()))
    wanted = kl(output, original, 3.0) + 2.0 * 1.0
    assert received == pytest.approx(wanted, rel=1e-4)
    assert {k: float(array(v)) for k, v in distiller.values.items()} == pytest.approx(
        {"(model)": kl(output, original, 3.0), "conv": 1.0}, rel=1e-4
    )


def test_a_call_of_inference_is_not_compared_and_a_forgotten_loss_is_noticed():
    distiller = attached(model := make())
    model(X, training=False)
    with pytest.raises(StageError, match="no forward pass to compare"):
        distiller.loss()
    model(X, training=True)
    with pytest.raises(StageError, match="ran again"):
        model(X, training=True)


@pytest.mark.parametrize("has_labels", [True, False])
def test_fit_minimizes_the_distance_with_and_without_labels(has_labels):
    model = make()
    distiller = attached(model, [{"temperature": 2.0, "weight": 5.0}, {"op_names": ["pool"]}])
    shake(model)
    before = kl(array(model(X, training=False)), array(distiller.teacher(X, training=False)), 2.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if has_labels else None
    model.compile(keras.optimizers.Adam(0.02), loss)
    teacher = [array(v) for v in distiller.teacher.variables]
    model.fit(X, Y if has_labels else None, epochs=15, batch_size=16, verbose=0)
    after = kl(array(model(X, training=False)), array(distiller.teacher(X, training=False)), 2.0)
    assert after < 0.5 * before
    for one, other in zip(teacher, distiller.teacher.variables, strict=True):
        assert np.array_equal(one, array(other))


def test_one_step_of_fit_follows_the_gradient_of_the_loss():
    """Without dropout and norms, one step of SGD can be computed by hand."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3, use_bias=False, name="head")(inputs))
    distiller = attached(model, [{"temperature": 2.0, "weight": 0.5}])
    x = RNG.normal(size=(8, 4)).astype("float32")
    kernel = RNG.normal(size=(4, 3)).astype("float32")
    model.get_layer("head").kernel.assign(kernel)
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(x, batch_size=8, epochs=1, verbose=0)
    original = array(distiller.teacher.get_layer("head").kernel)

    def softmax(z):
        powers = np.exp(z / 2 - (z / 2).max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    gradient = 0.5 * 2 * x.T @ (softmax(x @ kernel) - softmax(x @ original)) / 8
    np.testing.assert_allclose(
        array(model.get_layer("head").kernel), kernel - 0.1 * gradient, rtol=1e-4, atol=1e-6
    )


def test_evaluate_and_predict_are_without_the_teacher():
    model = make()
    distiller = attached(model, [{"weight": 100.0}])
    shake(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    received = model.evaluate(X, Y, verbose=0, batch_size=32)
    wanted = float(array(loss(Y, model.predict(X, verbose=0))))
    assert received == pytest.approx(wanted, rel=1e-4)
    distiller.strip()
    assert type(model) is type(make())


def test_beside_a_pruner_and_a_quantizer_in_one_fit():
    model = make()
    distiller = attached(model)
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    quantizer = QATQuantizer(model, [{"op_types": ["Conv2D", "Dense"], "quant_bits": 8}])
    quantizer.compress()
    model.compile(keras.optimizers.Adam(0.01))
    history = model.fit(X, epochs=4, batch_size=16, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert int((array(model.get_layer("conv").kernel) == 0).sum()) >= 45
    for compressor in (distiller, quantizer, pruner):
        compressor.strip()
    assert int((array(model.get_layer("conv").kernel) == 0).sum()) == 45


def test_a_model_that_is_compressed_already_is_no_teacher():
    model = make()
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    with pytest.raises(StageError, match="already under LevelPruner"):
        Distiller(model)


@pytest.mark.parametrize(("layer", "shared"), [("norm", "gamma"), ("act", "act")])
def test_a_teacher_does_not_share_layers_even_if_they_are_frozen(layer, shared):
    model = make()
    model.get_layer(layer).trainable = False
    inputs = keras.Input((6, 6, 2))
    features = model.get_layer(layer)(layers.Conv2D(5, 3)(inputs))
    with pytest.raises(ConfigError, match=rf"teacher: it shares '[^']*{shared}' with the model"):
        Distiller(model, teacher=keras.Model(inputs, features))


def test_a_teacher_may_have_the_same_symbolic_input():
    model = make()
    Distiller(model, teacher=keras.Model(model.input, layers.Dense(3)(model.input)))


def test_a_softmax_at_the_end_is_noticed_before_anything_runs():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(inputs))
    with pytest.raises(ConfigError, match=r"ends in a softmax.*'probabilities': True"):
        Distiller(model)
    distiller = attached(model, [{"probabilities": True, "temperature": 1.0}])
    kernel = model.layers[-1].kernel
    kernel.assign(-array(kernel))
    x = RNG.normal(size=(8, 4)).astype("float32")
    q = array(model(x, training=True))
    p = array(distiller.teacher(x))
    assert float(array(distiller.loss())) == pytest.approx(
        (p * np.log(p / q)).sum(1).mean(), rel=1e-3
    )


def test_a_projection_is_made_by_example_inputs_and_trained():
    teacher = make(8)
    model = make(5)
    rules = [{}, {"op_names": ["conv"], "loss": "mse"}]
    distiller = Distiller(model, rules, teacher=teacher)
    distiller.compress()
    model.compile("sgd")
    with pytest.raises(StageError, match="has 5 channels, its teacher 8"):
        model.fit(X, epochs=1, verbose=0)
    model = make(5)
    distiller = attached(model, rules, teacher=teacher, example_inputs=X)
    (projection,) = distiller.parameters()
    start = array(projection)
    assert start.shape == (8, 5)
    rows = array(model.get_layer("conv")(X)).reshape(-1, 5).astype("float64")
    wanted = array(teacher.get_layer("conv")(X)).reshape(-1, 8).astype("float64")
    gram = rows.T @ rows
    fitted = np.linalg.solve(gram + 1e-3 * np.diag(gram).mean() * np.eye(5), rows.T @ wanted).T
    np.testing.assert_allclose(start, fitted, rtol=1e-3, atol=1e-4)
    model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(X, epochs=4, batch_size=32, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert not np.array_equal(array(distiller.parameters()[0]), start)
    state = distiller.state()
    distiller.strip()
    assert len(model.trainable_variables) == len(make(5).trainable_variables)
    again = make(5)
    resumed = attached(again, rules, teacher=teacher, example_inputs=X)
    resumed.load_state(state)
    np.testing.assert_array_equal(
        array(resumed.parameters()[0]), state.tensors["conv"]["projection"]
    )
    other = attached(make(5), rules, teacher=make(8), example_inputs=X)
    with pytest.raises(StateError, match="another teacher"):
        other.load_state(state)


def test_a_projection_for_an_optimizer_that_is_built_is_refused():
    model = make(5)
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((32, 3)), epochs=1, verbose=0)
    distiller = Distiller(model, [{"op_names": ["conv"]}], teacher=make(8), example_inputs=X)
    with pytest.raises(StageError, match="optimizer is built without it"):
        distiller.compress()
    model.fit(X, np.zeros((32, 3)), epochs=1, verbose=0)


def test_attention_has_channels_last():
    model = make()
    distiller = attached(model, [{"op_names": ["conv"], "loss": "attention"}], teacher=make(9))
    conv = array(model.get_layer("conv")(X))
    other = array(distiller.teacher.get_layer("conv")(X))
    maps = [(x.astype("float64") ** 2).mean(-1).reshape(32, -1) for x in (conv, other)]
    maps = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in maps]
    model(X, training=True)
    wanted = ((maps[0] - maps[1]) ** 2).sum(1).mean()
    assert float(array(distiller.loss())) == pytest.approx(wanted, rel=1e-3)


def test_no_projection_is_learned_along_time():
    inputs = keras.Input((21, 3))
    model, teacher = (
        keras.Model(inputs, layers.ReLU(name="act")(layers.Conv1D(4, 3, strides=n)(inputs)))
        for n in (2, 1)
    )
    rules = [{"op_names": ["act"], "loss": "mse"}]
    x = RNG.normal(size=(8, 21, 3)).astype("float32")
    distiller = Distiller(model, rules, teacher=teacher, example_inputs=x)
    with pytest.raises(ConfigError, match=r"\(8, 10, 4\) and \(8, 19, 4\).*channels.* axis 2"):
        distiller.compress()


def test_a_part_that_the_caller_replaces_in_an_output_is_compared_as_it_was():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, {"logits": layers.Dense(3)(inputs), "other": inputs})
    distiller = attached(model)
    output = model(RNG.normal(size=(4, 6)).astype("float32"), training=True)
    output["logits"] = 3 * output["logits"]
    assert array(distiller.loss()) == 0


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a loop of TensorFlow's own")
def test_a_loop_of_ones_own_under_a_tape():
    import tensorflow as tf

    model = make()
    distiller = attached(model)
    shake(model)
    optimizer = keras.optimizers.Adam(0.02)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            model(x, training=True)
            loss = distiller.loss()
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    losses = [float(step(X)) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
