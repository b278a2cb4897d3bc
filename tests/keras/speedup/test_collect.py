"""Which channels belong together, and why others stay."""

import keras
import numpy as np
from keras import layers, ops

from lilliput.frameworks import backend_of
from lilliput.keras import channel_groups


def places(group):
    return sorted((s.tensor, s.dim) for s in group.slices)


def test_a_channel_goes_with_its_norm_and_its_readers():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Conv2D(8, 3, name="conv"),
            layers.BatchNormalization(name="bn"),
            layers.Flatten(),
            layers.Dense(2, name="head"),
        ]
    )
    groups = channel_groups(model)
    (group,) = groups
    assert group.name == "conv.kernel" and group.size == 8
    assert places(group) == [
        ("bn.beta", 0),
        ("bn.gamma", 0),
        ("bn.moving_mean", 0),
        ("bn.moving_variance", 0),
        ("conv.bias", 0),
        ("conv.kernel", 3),
        ("head.kernel", 0),
    ]
    assert [s.tensor for s in group.slices if s.is_output] == ["conv.kernel"]
    flat = next(s for s in group.slices if s.tensor == "head.kernel")
    assert np.array_equal(flat.units, np.tile(np.arange(8), 16))
    assert groups.count_parameters() == sum(int(np.prod(x.shape)) for x in model.trainable_weights)
    assert groups.reason("head.kernel") == "they are the model's output"


def test_depthwise_outputs_go_with_their_input():
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 1, name="a")(inputs)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, name="b")(x)
    (group,) = channel_groups(keras.Model(inputs, layers.Conv2D(2, 1, name="c")(x)))
    units = {s.tensor: s.units.tolist() for s in group.slices}
    assert units["b.kernel"] == [0, 1, 2, 3]
    assert units["b.bias"] == units["c.kernel"] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_groups_of_a_convolution_keep_equally_many():
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 1, name="a")(inputs)
    x = layers.Conv2D(6, 1, groups=2, name="b")(x)
    first, second = channel_groups(keras.Model(inputs, layers.Conv2D(2, 1, name="c")(x)))
    assert first.rows.tolist() == [0, 0, 1, 1] and second.rows.tolist() == [0, 0, 0, 1, 1, 1]
    ragged = next(s for s in first.slices if s.tensor == "b.kernel")
    assert (ragged.dim, ragged.filters, ragged.units.tolist()) == (2, 3, [[0, 1], [2, 3]])


def test_what_stays_says_why():
    inputs = keras.Input((5,))
    x = layers.Dense(6, "softmax", name="soft")(inputs)
    x = layers.Dense(6, name="averaged")(x)
    x = x - ops.mean(x, axis=-1, keepdims=True)
    x = ops.cumsum(layers.Dense(6, name="summed")(x), axis=-1)
    x = ops.log(layers.Dense(6, name="logged")(x))
    x = layers.Dense(6, name="top")(x) / layers.Dense(6, name="bottom")(x)
    x = x + ops.sum(layers.Dense(6, name="added")(x), axis=-1, keepdims=True)
    x = layers.Dense(6, name="offset")(x) + np.ones(6, "float32")
    groups = channel_groups(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    assert "softmax" in groups.reason("soft.kernel")
    assert "a mean over channels" in groups.reason("averaged.kernel")
    assert "Cumsum" in groups.reason("summed.kernel")
    assert "Log" in groups.reason("logged.kernel")
    assert "infinities" in groups.reason("bottom.kernel")
    assert groups.reason("added.kernel") == ""  # zeros do not change a sum
    assert "array" in groups.reason("offset.kernel")
    assert set(groups.unknown) >= {"Cumsum", "Log"}


def test_a_layer_without_a_rule_names_itself_as_the_reason():
    inputs = keras.Input((6, 5))
    attention = layers.AdditiveAttention(name="mixer")
    x = layers.Dense(8, name="before")(inputs)
    groups = channel_groups(keras.Model(inputs, layers.Dense(2)(attention([x, x]))))
    assert "AdditiveAttention at mixer" in groups.reason("before.kernel")
    assert "AdditiveAttention at mixer" in groups.reason("mixer.scale")
    assert groups.unreached == ()


def test_a_product_loses_one_of_its_factors():
    inputs = keras.Input((4,))
    x = layers.Reshape((3, 8))(layers.Dense(24, name="wide")(inputs))
    x = layers.Dense(5, name="mixed")(x)
    groups = channel_groups(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x))))
    assert {g.name: g.size for g in groups} == {"wide.kernel": 8, "mixed.kernel": 5}


def test_only_a_subclassed_model_needs_example_inputs():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = layers.Dense(4, name="first")
            self.last = layers.Dense(2, name="last")

        def call(self, x):
            return self.last(ops.relu(self.first(x)))

    model = Plain()
    x = np.zeros((2, 3), "float32")
    model(x)
    assert backend_of(model).needs_example(model)
    assert [g.name for g in channel_groups(model, x)] == ["first.kernel"]
    plain = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    assert not backend_of(plain).needs_example(plain)


def test_the_picture_is_drawn(tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="a"), layers.Dense(2)])
    channel_groups(model).save_svg(tmp_path / "groups.svg")
    assert "a.kernel · 8 units" in (tmp_path / "groups.svg").read_text(encoding="utf-8")
