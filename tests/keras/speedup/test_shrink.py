"""Every layer that channels pass: the shrunk model gives what the masked one gives."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.frameworks.keras import kernels
from lilliput.frameworks.keras.kernels import KernelError
from lilliput.frameworks.keras.scopes import is_tracing
from lilliput.speedup.channels import channel_groups


def sizes(model):
    return {
        layer.name: getattr(layer, "filters", getattr(layer, "units", None))
        for layer in model._flatten_layers(include_self=False)
        if hasattr(layer, "filters") or hasattr(layer, "units")
    }


def chain(shape, *inner, head=True):
    """A convolution or dense layer, what is tried, and a head."""
    model = keras.Sequential([keras.Input(shape), *inner])
    if head:
        model.add(layers.Flatten())
        model.add(layers.Dense(3, name="head"))
    return model


def test_dense_layers_lose_units_and_inputs(shrink):
    hidden = [layers.Dense(8, "relu", name="a"), layers.Dense(6, "tanh", name="b")]
    result = shrink(chain((5,), *hidden))
    assert sizes(result.model) == {"a": 4, "b": 3, "head": 3}
    assert result.parameters == (8 * 6 + 6 * 9 + 3 * 7, 4 * 6 + 3 * 5 + 3 * 4)
    assert result.macs == (5 * 8 + 8 * 6 + 6 * 3, 5 * 4 + 4 * 3 + 3 * 3)
    assert result.removed == {"a.kernel": (4, 8), "b.kernel": (3, 6)}
    assert "equal to the masked model" in str(result)


def test_results_are_short_at_the_prompt_and_tables_in_notebooks(shrink):
    model = chain((5,), layers.Dense(8, "relu", name="a&b"), layers.Dense(6, name="b"))
    groups = channel_groups(model)
    assert repr(groups) == "ChannelGroups(2 channel groups, 14 units, 1 pinned)"
    table = groups._repr_html_()
    assert "a&amp;b.kernel" in table and "model&#x27;s output" in table and table.count("<tr>") == 3
    result = shrink(model)
    assert repr(result).startswith("SpeedupResult(module, 123 → 51 parameters, error ")
    shown = result._repr_html_()
    assert "<td" in shown and "123 → 51" in shown and len(shown) < 3000


@pytest.mark.parametrize("name", ["sigmoid", "exponential", "softplus", "hard_sigmoid"])
def test_activations_that_make_something_of_zero_are_exact(shrink, name):
    result = shrink(chain((5,), layers.Dense(8, name, name="a"), layers.Dense(6, name="b")))
    assert sizes(result.model)["a"] == 4


AFTER = {
    "norm": lambda: [layers.BatchNormalization(), layers.ReLU()],
    "norm without scale": lambda: [layers.BatchNormalization(scale=False), layers.LeakyReLU()],
    "norm without shift": lambda: [layers.BatchNormalization(center=False)],
    "slopes": lambda: [layers.PReLU(), layers.PReLU(shared_axes=[1, 2])],
    "dropout": lambda: [
        layers.Dropout(0.5),
        layers.SpatialDropout2D(0.5),
        layers.AlphaDropout(0.5),
    ],
    "windows": lambda: [layers.MaxPooling2D(), layers.ZeroPadding2D(1), layers.Cropping2D(1)],
    "resampling": lambda: [layers.AveragePooling2D(2), layers.UpSampling2D(2)],
    "elementwise": lambda: [
        layers.Activation("silu"),
        layers.GaussianNoise(0.1),
        layers.Identity(),
    ],
    "mean": lambda: [layers.GlobalAveragePooling2D(), layers.RepeatVector(2)],
    "maximum": lambda: [layers.GlobalMaxPooling2D(keepdims=True), layers.Rescaling(2.0, 1.0)],
    "permutation": lambda: [layers.Permute((3, 1, 2)), layers.ELU()],
    "view": lambda: [layers.Reshape((36, 8)), layers.Conv1D(6, 3, name="other")],
    "open view": lambda: [layers.Reshape((-1, 8)), layers.Dense(6, name="other")],
    "depthwise": lambda: [layers.DepthwiseConv2D(3), layers.Conv2D(4, 1)],
    "multiplied": lambda: [layers.DepthwiseConv2D(3, depth_multiplier=2, activation="sigmoid")],
    "separable": lambda: [layers.SeparableConv2D(6, 3, depth_multiplier=2, name="other")],
    "transposed": lambda: [layers.Conv2DTranspose(6, 3, strides=2, name="other")],
    "groups": lambda: [layers.Conv2D(8, 3, groups=2, name="other"), layers.Conv2D(4, 1)],
    "as many groups": lambda: [layers.Conv2D(16, 3, groups=8, name="other"), layers.Conv2D(4, 1)],
    "dense": lambda: [layers.Dense(6, "gelu", name="other")],
}


@pytest.mark.parametrize("what", AFTER)
def test_what_follows_a_convolution(shrink, what):
    first = layers.Conv2D(8, 3, padding="same", name="first")
    result = shrink(chain((6, 6, 3), first, *AFTER[what]()))
    assert sizes(result.model)["first"] == 4
    whole = {x.name: x.get_config() for x in AFTER[what]()}.get("other", {})
    if whole:
        size = whole.get("filters", whole.get("units"))
        assert sizes(result.model)["other"] == size // 2


OTHERS = {
    "causal": lambda: [layers.Conv1D(8, 3, padding="causal"), layers.DepthwiseConv1D(3)],
    "sequence": lambda: [layers.Conv1DTranspose(8, 3), layers.SeparableConv1D(6, 3)],
    "pooled": lambda: [layers.Dense(8, "relu"), layers.MaxPooling1D(), layers.ZeroPadding1D(1)],
    "mean": lambda: [layers.Dense(8, "relu"), layers.GlobalAveragePooling1D()],
    "space": lambda: [layers.Reshape((3, 3, 2, 2)), layers.Conv3D(8, 2), layers.MaxPooling3D(1)],
    "space, transposed": lambda: [layers.Reshape((3, 3, 2, 2)), layers.Conv3DTranspose(8, 2)],
}


@pytest.mark.parametrize("what", OTHERS)
def test_one_and_three_dimensions(shrink, what):
    shrink(chain((9, 4), *OTHERS[what]()))


def test_an_embedding_loses_columns(shrink):
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(20, 8, name="table"),
            layers.Conv1D(6, 3, name="conv"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(3),
        ]
    )
    result = shrink(model)
    assert result.model.get_layer("table").output_dim == 4


def block(x, width, name):
    y = layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"{name}_a")(x)
    y = layers.BatchNormalization(name=f"{name}_bn_a")(y)
    y = layers.ReLU(name=f"{name}_relu")(y)
    y = layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"{name}_b")(y)
    y = layers.BatchNormalization(name=f"{name}_bn_b")(y)
    if x.shape[-1] != width:
        x = layers.Conv2D(width, 1, name=f"{name}_short")(x)
    return layers.ReLU(name=f"{name}_out")(layers.Add(name=f"{name}_add")([x, y]))


def residual():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(inputs)
    x = block(block(x, 8, "one"), 12, "two")
    return keras.Model(inputs, layers.Dense(5, name="head")(layers.GlobalAveragePooling2D()(x)))


def test_residual_blocks_lose_the_same_channels(shrink):
    widths = sizes(shrink(residual()).model)
    assert widths["stem"] == widths["one_b"] == widths["one_a"] == 4
    assert widths["two_a"] == widths["two_b"] == widths["two_short"] == 6


def test_concatenated_channels_keep_their_places(shrink):
    inputs = keras.Input((6, 6, 3))
    a = layers.Conv2D(4, 3, padding="same", name="a")(inputs)
    b = layers.Conv2D(6, 1, activation="sigmoid", name="b")(inputs)
    x = layers.Concatenate()([a, b, a, inputs])
    x = layers.Conv2D(8, 3, name="c")(layers.BatchNormalization()(x))
    result = shrink(keras.Model(inputs, layers.Dense(2, name="head")(layers.Flatten()(x))))
    assert sizes(result.model) == {"a": 2, "b": 3, "c": 4, "head": 2}


@pytest.mark.parametrize("merge", ["Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"])
def test_merged_channels_go_together(shrink, merge):
    inputs = keras.Input((6, 6, 3))
    a = layers.Conv2D(6, 1, name="a")(inputs)
    gate = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 1, name="b")(inputs))
    gate = layers.Dense(6, "sigmoid", name="gate")(layers.Dense(4, "relu", name="narrow")(gate))
    joined = getattr(layers, merge)()([a, gate])  # ranks 4 and 2
    result = shrink(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(joined))))
    widths = sizes(result.model)
    assert (widths["a"], widths["gate"], widths["narrow"], widths["b"]) == (3, 3, 2, 3)


def test_operations_of_keras_ops(shrink):
    inputs = keras.Input((6, 6, 3))
    a = layers.Conv2D(8, 1, name="a")(inputs)
    x = ops.relu(a) * 2 + ops.sigmoid(layers.Conv2D(8, 1, name="b")(inputs))
    x = ops.transpose(x, (0, 3, 1, 2))
    x = ops.reshape(x, (-1, 8, 36))
    x = ops.concatenate([x, ops.expand_dims(ops.mean(x, axis=2), -1)], axis=2)
    x = ops.max(x, axis=-1) - ops.squeeze(ops.mean(x, axis=2, keepdims=True), axis=2)
    x = ops.where(x > 0, x, ops.tanh(x) / 2.0)
    result = shrink(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    assert sizes(result.model) == {"a": 4, "b": 4, "head": 2}


def test_shared_layers_stay_shared(shrink):
    first, second = keras.Input((6, 6, 3)), keras.Input((6, 6, 3))
    shared = layers.Conv2D(8, 3, name="shared")
    x = layers.Subtract()([shared(first), ops.tanh(shared(second))])
    model = keras.Model([first, second], layers.Dense(2)(layers.Flatten()(x)))
    result = shrink(model)
    assert result.model.get_layer("shared").filters == 4
    assert len(result.model.weights) == len(model.weights)


def test_several_inputs_and_outputs_in_dicts(shrink):
    inputs = {"x": keras.Input((5,), name="x"), "y": keras.Input((4,), name="y")}
    a = layers.Dense(8, "relu", name="a")(inputs["x"])
    b = layers.Dense(8, "relu", name="b")(inputs["y"])
    both = layers.Add()([a, b])
    outputs = {"sum": layers.Dense(2, name="c")(both), "left": layers.Dense(3, name="d")(a)}
    result = shrink(keras.Model(inputs, outputs))
    assert sizes(result.model) == {"a": 4, "b": 4, "c": 2, "d": 3}
    assert sorted(result.model.output) == ["left", "sum"]


def nested():
    inner_input = keras.Input((6, 6, 8), name="inner_input")
    y = layers.Conv2D(6, 3, padding="same", activation="relu", name="conv")(inner_input)
    y = layers.Conv2D(8, 3, padding="same", name="back")(y) + inner_input
    inner = keras.Model(inner_input, y, name="inner")
    stage = keras.Sequential([keras.Input((6, 6, 8)), inner, layers.ReLU()], name="stage")
    inputs = keras.Input((6, 6, 3))
    x = stage(layers.Conv2D(8, 1, name="stem")(inputs))
    return keras.Model(inputs, layers.Dense(2, name="head")(layers.Flatten()(inner(x))))


def test_nested_models_are_cut_inside(shrink):
    result = shrink(nested())
    assert sizes(result.model) == {"stem": 4, "conv": 3, "back": 4, "head": 2}
    stage = result.model.get_layer("stage")
    assert isinstance(stage, keras.Sequential) and stage.input_shape == (None, 6, 6, 4)
    assert stage.get_layer("inner") is result.model.get_layer("inner")


def test_a_nested_model_of_operations_gets_the_same_channels_each_time(shrink):
    inner_input = keras.Input((8,))
    inner = keras.Model(inner_input, ops.tanh(inner_input) * 2, name="inner")
    inputs = keras.Input((5,))
    x = inner(layers.Dense(8, name="a")(inputs))
    x = inner(layers.Dense(8, name="b")(x))
    result = shrink(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    assert sizes(result.model) == {"a": 4, "b": 4, "head": 2}
    assert result.model.get_layer("inner").input_shape == (None, 4)


def in_channels_first(width=9):
    inputs = keras.Input((3, 7, width))
    options = {"data_format": "channels_first", "padding": "same"}
    x = layers.Conv2D(8, 3, name="a", **options)(inputs)
    x = layers.BatchNormalization(axis=1)(x)
    x = layers.DepthwiseConv2D(3, **options)(x)
    x = layers.Conv2D(6, 3, groups=2, name="b", **options)(x)
    x = layers.MaxPooling2D(**options)(x)
    y = layers.GlobalAveragePooling2D(data_format="channels_first")(x)
    x = layers.Flatten(data_format="channels_first")(x)
    return keras.Model(inputs, layers.Dense(2, name="head")(layers.Concatenate()([x, y])))


def test_channels_first(shrink):
    try:
        result = shrink(in_channels_first())
    except KernelError as refused:
        if "off by" not in str(refused):
            pytest.skip(f"the kernels do not run here: {refused}")
        assert "the channels_first kernels of" in str(refused)  # wrong on this CPU, and named
        return
    assert sizes(result.model) == {"a": 4, "b": 2, "head": 2}


def test_a_bias_that_keras_adds_along_the_width_is_refused(shrink):
    try:
        shrink(in_channels_first(width=6))  # as many as there are filters in b
    except KernelError as refused:
        assert keras.backend.backend() == "tensorflow"
        assert "layer 'b'" in str(refused) and "adds its bias along the last axis" in str(refused)
    else:
        x, bias = (
            np.zeros((1, 6, 5, 6), "float32"),
            np.arange(6, dtype="float32").reshape(1, 6, 1, 1),
        )
        assert np.array_equal(ops.convert_to_numpy(ops.add(x, bias)), x + bias)


def simulate_kernels(monkeypatch, is_wrong):
    """Let convolutions run in channels_first on any CPU, some of them off by 2 %."""
    plain = keras.src.backend.nn.conv

    def conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
        if data_format != "channels_first":
            return plain(inputs, kernel, strides, padding, data_format, dilation_rate)
        last = ops.moveaxis(inputs, 1, -1)
        y = plain(last, kernel, strides, padding, "channels_last", dilation_rate)
        return ops.moveaxis(y, -1, 1) * (1.02 if is_wrong() else 1.0)

    monkeypatch.setattr(keras.src.backend.nn, "conv", conv)


@pytest.fixture
def fresh_probes():
    kernels._probe.cache_clear()
    yield
    kernels._probe.cache_clear()


def test_a_wrong_kernel_is_named_and_refused(shrink, monkeypatch, fresh_probes):
    simulate_kernels(monkeypatch, lambda: True)
    with pytest.raises(
        KernelError, match="channels_first kernels of .* layer 'a' .* is off by 2..e-02"
    ):
        shrink(in_channels_first())


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has one way to run")
def test_where_eager_kernels_are_wrong_the_graph_is_compared(shrink, monkeypatch, fresh_probes):
    simulate_kernels(monkeypatch, lambda: not is_tracing())
    result = shrink(in_channels_first())
    assert sizes(result.model) == {"a": 4, "b": 2, "head": 2}
    (note,) = [x for x in result.notes if "eager" in x]
    assert "layer 'a' is off by 2." in note


def test_layers_made_of_layers_are_cut_inside(shrink):
    inputs = keras.Input((6, 5))
    x = layers.Dense(8, name="a")(inputs)
    x = layers.LSTM(4, return_sequences=True, name="lstm")(x)
    x = layers.Dense(8, "relu", name="b")(x)
    x = layers.LayerNormalization()(layers.Dense(6, name="c")(x))
    x = layers.MultiHeadAttention(2, 3, name="heads")(x, x)
    result = shrink(keras.Model(inputs, layers.Dense(2, name="head")(layers.Flatten()(x))))
    widths = sizes(result.model)
    assert (widths["a"], widths["b"]) == (4, 4)
    assert widths["c"] == 6  # a norm that sees all channels keeps them
    assert result.model.get_layer("lstm").units == 2
    assert result.model.get_layer("heads").num_heads == 1
