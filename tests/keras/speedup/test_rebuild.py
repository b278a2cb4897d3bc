"""The new model is like the old one in everything but its channels."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.keras import L1NormPruner
from lilliput.speedup.shrink import speedup


def net(**options):
    return keras.Sequential(
        [
            keras.Input((6, 6, 3), name="image"),
            layers.Conv2D(8, 3, kernel_regularizer="l2", name="conv", **options),
            layers.BatchNormalization(momentum=0.7, name="norm"),
            layers.ReLU(name="relu"),
            layers.Flatten(name="flat"),
            layers.Dense(3, kernel_initializer="he_normal", name="head"),
        ],
        name="net",
    )


def shrunk(model, group_masks, shaken):
    masks = group_masks(shaken(model))
    return speedup(model, masks=masks, inplace=False).model


def test_names_options_and_initializers_are_kept(group_masks, shaken):
    model = net()
    model.optimizer = None
    new = shrunk(model, group_masks, shaken)
    assert new is not model and new.name == "net"
    assert [x.name for x in new.layers] == [x.name for x in model.layers]
    assert new.get_layer("norm").momentum == 0.7
    assert isinstance(new.get_layer("conv").kernel_regularizer, keras.regularizers.L2)
    assert isinstance(new.get_layer("head").kernel_initializer, keras.initializers.HeNormal)
    assert not new.compiled


@pytest.mark.parametrize("is_sequential", [True, False])
def test_inputs_keep_their_names_also_those_that_keras_made_up(group_masks, shaken, is_sequential):
    if is_sequential:
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, name="hidden"), layers.Dense(2, name="head")]
        )
    else:
        inputs = [keras.Input((4,)), keras.Input((4,), name="other")]
        hidden = layers.Dense(8, name="hidden")(layers.Add()(inputs))
        model = keras.Model(inputs, layers.Dense(2, name="head")(hidden))
    names = [x.name for x in model.inputs]  # what files call the inputs
    own = [x._keras_history.operation.name for x in model.inputs]
    assert names[0] != own[0]
    new = shrunk(model, group_masks, shaken)
    assert new.get_layer("hidden").units < 8
    assert [x.name for x in new.inputs] == names
    assert [x._keras_history.operation.name for x in new.inputs] == own


def test_what_is_frozen_stays_frozen(group_masks, shaken):
    model = net()
    model.get_layer("norm").trainable = False
    model.get_layer("head").bias.trainable = False
    new = shrunk(model, group_masks, shaken)
    assert [x.trainable for x in new.layers] == [x.trainable for x in model.layers]
    assert not new.get_layer("head").bias.trainable
    assert len(new.trainable_weights) == len(model.trainable_weights)


def test_a_frozen_model_with_a_layer_that_trains(group_masks, shaken):
    model = net()
    model.trainable = False
    model.get_layer("head").trainable = True
    new = shrunk(model, group_masks, shaken)
    assert not new.trainable
    assert [x.trainable for x in new.layers] == [x.trainable for x in model.layers]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_mixed_precision_is_kept(group_masks, shaken, policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = net()
    finally:
        keras.config.set_dtype_policy(before)
    new = shrunk(model, group_masks, shaken)
    assert new.dtype_policy.name == model.dtype_policy.name == policy
    assert {x.dtype_policy.name for x in new.layers} == {policy}
    assert new.get_layer("conv").filters == 4


def test_the_model_itself_is_left_alone(group_masks, shaken):
    model = net()
    masks = group_masks(shaken(model))
    nodes = [len(x._inbound_nodes) for x in model.layers]
    values = [keras.ops.convert_to_numpy(x) for x in model.weights]
    config = model.get_config()
    speedup(model, masks=masks, inplace=False)
    assert nodes == [len(x._inbound_nodes) for x in model.layers]
    after = [keras.ops.convert_to_numpy(x) for x in model.weights]
    assert all(np.array_equal(x, y) for x, y in zip(values, after, strict=True))
    assert model.get_config() == config


def test_the_new_model_trains(group_masks, shaken):
    new = shrunk(net(), group_masks, shaken)
    new.compile("adam", "mse")
    before = keras.ops.convert_to_numpy(new.get_layer("conv").kernel)
    data = np.ones((4, 6, 6, 3), "float32"), np.ones((4, 3), "float32")
    new.fit(*data, epochs=1, verbose=0)
    assert not np.array_equal(before, keras.ops.convert_to_numpy(new.get_layer("conv").kernel))


def test_it_saves_as_a_plain_smaller_file(group_masks, shaken, tmp_path):
    model = keras.Sequential(
        [keras.Input((40,)), layers.Dense(400, "relu"), layers.Dense(300), layers.Dense(5)]
    )
    new = shrunk(model, group_masks, shaken)
    model.save(tmp_path / "large.keras")
    new.save(tmp_path / "small.keras")
    again = keras.models.load_model(tmp_path / "small.keras")
    x = np.random.default_rng(0).standard_normal((3, 40)).astype("float32")
    assert np.array_equal(new.predict(x, verbose=0), again.predict(x, verbose=0))
    assert (tmp_path / "small.keras").stat().st_size < (tmp_path / "large.keras").stat().st_size / 2


def test_a_table_that_initialized_weights_is_forgotten(group_masks, shaken, tmp_path):
    table = np.arange(40.0).reshape(5, 8)
    start = keras.initializers.Constant(table.tolist())
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(5, 8, embeddings_initializer=start, name="table"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )
    new = shrunk(model, group_masks, shaken)
    assert new.get_layer("table").output_dim == 4
    new.save(tmp_path / "small.keras")
    keras.models.load_model(tmp_path / "small.keras")


class Scale(layers.Layer):
    """A layer of a user's own, which no rule knows."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def cube(x):
    return x * x * x


def test_layers_and_functions_of_ones_own_are_copied(shrink):
    inputs = keras.Input((5,))
    x = layers.Dense(6, activation=cube, name="a")(inputs)
    x = Scale(name="scale")(x)
    x = layers.Lambda(lambda x: x + 1, name="lambda")(layers.Dense(8, "relu", name="b")(x))
    x = layers.TimeDistributed(layers.Dense(4, activation=cube))(layers.RepeatVector(2)(x))
    x = layers.Dense(6, "relu", name="c")(x)
    new = shrink(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))).model
    assert [new.get_layer(name).units for name in "abc"] == [6, 8, 3]
    assert new.get_layer("a").activation is cube


class Custom(keras.Model):
    def extra(self):
        return 7


def test_a_functional_model_of_ones_own_class_keeps_it(shrink):
    inputs = keras.Input((5,))
    x = layers.Dense(6, "relu")(inputs)
    new = shrink(Custom(inputs, layers.Dense(2)(x))).model
    assert type(new) is Custom and new.extra() == 7


class Tuned(keras.Model):
    """A functional model whose constructor has an argument of its own."""

    def __init__(self, inputs=None, outputs=None, alpha=0.1, **others):
        super().__init__(inputs=inputs, outputs=outputs, **others)
        self.alpha, self._beta = alpha, [alpha, {"twice": 2 * alpha}]


def test_what_was_given_to_a_model_goes_over_to_the_smaller_one(shrink):
    inputs = keras.Input((5,))
    hidden = layers.Dense(6, "relu")
    model = Tuned(inputs, layers.Dense(2)(hidden(inputs)), alpha=0.9)
    model.compile("sgd", "mse")
    model.tag, model.hidden, model.odd = (3, "x"), hidden, object()
    result = shrink(model)
    new = result.model
    assert new.alpha == 0.9 and list(new._beta) == [0.9, {"twice": 1.8}]
    assert tuple(new.tag) == (3, "x") and new.hidden is new.layers[1] is not hidden
    assert not hasattr(new, "odd") and any("not copied: odd;" in x for x in result.notes)


def test_a_sequential_model_that_is_shrunk_in_place_keeps_its_attributes():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(2)])
    model.compile("sgd", "mse")
    model.tag, model._run = 3, {"seed": [7, None]}
    model.fit(np.zeros((4, 8)), np.zeros((4, 2)), verbose=0)
    model.evaluate(np.zeros((4, 8)), np.zeros((4, 2)), verbose=0)
    model.predict(np.zeros((4, 8)), verbose=0)
    kernel, bias = model.layers[0].get_weights()
    kernel[:, :4] = bias[:4] = 0
    model.layers[0].set_weights([kernel, bias])
    result = speedup(model, extend_masks=True)
    assert model.layers[0].units == 4 and not result.notes
    assert model.tag == 3 and model._run == {"seed": [7, None]}
    assert not model.compiled and not model.predict(np.zeros((4, 8)), verbose=0).any()


def test_a_private_attribute_that_cannot_be_carried_over_is_noted():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(2)])
    model._odd = object()
    kernel, bias = model.layers[0].get_weights()
    kernel[:, :4] = bias[:4] = 0
    model.layers[0].set_weights([kernel, bias])
    (note,) = speedup(model, extend_masks=True).notes
    assert "were not copied: _odd;" in note and not hasattr(model, "_odd")


@pytest.mark.parametrize("name", [None, "image"])
def test_an_input_keeps_its_name(name):
    for _ in range(2):  # Keras numbers the tensors of all models
        inputs = keras.Input((6, 6, 3), name=name)
        x = keras.layers.Flatten()(keras.layers.Conv2D(8, 3)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(2)(x))
    before = [x.name for x in model.inputs]
    L1NormPruner(model, [{"op_types": ["Conv2D"], "sparsity": 0.5}]).compress()
    assert [x.name for x in speedup(model).model.inputs] == before
