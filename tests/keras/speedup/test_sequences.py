"""Transformers, recurrent layers and norms over channels are cut, and compute what they computed."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.keras import AGPPruner, L1NormPruner, channel_groups, speedup
from lilliput.pruning.l1 import L1NormMasker
from lilliput.report.measure import measure

HALF = [{"op_types": ["default"], "sparsity": 0.5}]


def array(x):
    return np.array(keras.ops.convert_to_numpy(x.detach() if hasattr(x, "detach") else x))


def shake(model, seed=0):
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in str(variable.dtype):
            variable.assign(rng.uniform(0.2, 1.0, variable.shape) * rng.choice([-1, 1]) * 0.5)
    return model


def difference(expected, received):
    return np.abs(expected - received).max() / np.abs(expected).max()


def pruned_and_cut(model, x, rules=HALF):
    """Prune a model, cut it, and return the result with its distance to the masked model."""
    L1NormPruner(model, rules).compress()
    expected = array(model(x, training=False))
    result = speedup(model, x)
    return result, difference(expected, array(result.model(x, training=False)))


def encoder(width=8, heads=4, **options):
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, width, name="words")(inputs)
    for i in range(2):
        attention = layers.MultiHeadAttention(heads, 3, name=f"attention{i}", **options)
        x = layers.LayerNormalization(name=f"first{i}")(x + attention(x, x))
        inner = layers.Dense(12, "gelu", name=f"up{i}")(x)
        x = layers.LayerNormalization(name=f"second{i}")(
            x + layers.Dense(width, name=f"down{i}")(inner)
        )
    x = layers.GlobalAveragePooling1D()(x)
    return shake(keras.Model(inputs, layers.Dense(3, name="head")(x)))


def tokens(count=3):
    return np.random.default_rng(1).integers(0, 11, (count, 6)).astype("int32")


def test_a_transformer_loses_heads_hidden_units_and_width():
    model = encoder()
    dense = array(model(tokens()))
    result, error = pruned_and_cut(model, tokens())
    assert error < 1e-5 < difference(dense, array(result.model(tokens())))
    small = result.model
    assert [small.get_layer(f"attention{i}").num_heads for i in (0, 1)] == [2, 2]
    assert [small.get_layer(f"up{i}").units for i in (0, 1)] == [6, 6]
    assert small.get_layer("words").output_dim == 4
    assert small.get_layer("second1").gamma.shape == (4,)
    assert result.parameters[1] == sum(int(np.prod(x.shape)) for x in small.trainable_weights)
    assert result.macs[1] == 3 * measure(small, tokens(), runs=0).macs


@pytest.mark.parametrize("options", [{"use_gate": True}, {"use_bias": False}])
def test_attention_with_a_gate_or_without_biases(options):
    _, error = pruned_and_cut(encoder(**options), tokens())
    assert error < 1e-5


def test_attention_to_another_sequence_with_a_width_of_its_own():
    first, second = keras.Input((5, 4)), keras.Input((7, 6))
    query = layers.Dense(8, name="query")(first)
    memory = layers.Dense(10, name="memory")(second)
    x = layers.MultiHeadAttention(4, 3, output_shape=6, name="across")(query, memory)
    model = shake(keras.Model([first, second], layers.Dense(2, name="head")(x)))
    rng = np.random.default_rng(2)
    given = [rng.standard_normal(shape).astype("float32") for shape in ((2, 5, 4), (2, 7, 6))]
    result, error = pruned_and_cut(model, given)
    assert error < 1e-5
    across = result.model.get_layer("across")
    assert (across.num_heads, across.output.shape) == (2, (None, 5, 3))


def test_a_criterion_that_scores_activations_leaves_heads_alone():
    class Watching(L1NormMasker):
        reads_weights = False

    class Pruner(L1NormPruner):
        masker_type = Watching

    pruner = Pruner(encoder(), HALF)
    pruner.compress()
    result = speedup(pruner.bound_model, tokens())
    assert result.model.get_layer("attention0").num_heads == 4
    assert result.model.get_layer("up0").units == 6


def test_a_causal_mask_stays():
    inputs = keras.Input((6, 4))
    x = layers.Dense(8, name="in")(inputs)
    x = x + layers.MultiHeadAttention(2, 4, name="attention")(x, x, use_causal_mask=True)
    model = shake(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    x = np.random.default_rng(2).standard_normal((2, 6, 4)).astype("float32")
    result, error = pruned_and_cut(model, x)
    assert error < 1e-5
    changed = x.copy()
    changed[:, -1] += 1
    first, second = (array(result.model(given))[:, :-1] for given in (x, changed))
    assert np.array_equal(first, second)


RECURRENT = {
    "lstm": lambda: layers.LSTM(8, name="cells"),
    "sequences": lambda: layers.LSTM(8, return_sequences=True, name="cells"),
    "gru": lambda: layers.GRU(8, name="cells"),
    "gru_before": lambda: layers.GRU(8, reset_after=False, name="cells"),
    "simple": lambda: layers.SimpleRNN(8, use_bias=False, name="cells"),
    "both": lambda: layers.Bidirectional(layers.LSTM(8), name="cells"),
    "added": lambda: layers.Bidirectional(layers.GRU(8), merge_mode="sum", name="cells"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_lose_hidden_units(name):
    inputs = keras.Input((5, 4))
    x = RECURRENT[name]()(layers.Dense(6, name="front")(inputs))
    model = shake(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    x = np.random.default_rng(3).standard_normal((3, 5, 4)).astype("float32")
    result, error = pruned_and_cut(model, x)
    assert error < 1e-5
    cells = result.model.get_layer("cells")
    assert getattr(cells, "forward_layer", cells).units == 4
    assert result.model.get_layer("front").units == 3
    assert result.macs[1] == len(x) * measure(result.model, x, runs=0).macs


def test_states_that_are_passed_on_lose_the_same_units():
    first, second = keras.Input((4, 3)), keras.Input((5, 3))
    _, *states = layers.LSTM(6, return_state=True, name="encoder")(first)
    x = layers.LSTM(6, name="decoder")(second, initial_state=states)
    model = shake(keras.Model([first, second], layers.Dense(2, name="head")(x)))
    rng = np.random.default_rng(4)
    given = [rng.standard_normal((2, n, 3)).astype("float32") for n in (4, 5)]
    result, error = pruned_and_cut(model, given)
    assert error < 1e-5
    assert {result.model.get_layer(x).units for x in ("encoder", "decoder")} == {3}


def test_an_activation_that_makes_something_of_zero_keeps_its_units():
    inputs = keras.Input((5, 4))
    x = layers.LSTM(8, activation="sigmoid", name="cells")(inputs)
    groups = channel_groups(keras.Model(inputs, layers.Dense(2)(x)))
    assert "maps zero to another value" in groups.reason("cells/lstm_cell.kernel")


NORMS = {
    "layer": lambda: layers.LayerNormalization(name="norm"),
    "plain": lambda: layers.LayerNormalization(center=False, scale=False, name="norm"),
    "rms": lambda: layers.RMSNormalization(name="norm"),
    "groups": lambda: layers.GroupNormalization(2, name="norm"),
    "instances": lambda: layers.GroupNormalization(-1, name="norm"),
    "unit": lambda: layers.UnitNormalization(name="norm"),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_over_channels_see_those_that_stay(name):
    inputs = keras.Input((6, 6, 3))
    x = NORMS[name]()(layers.Conv2D(8, 3, name="conv")(inputs))
    x = layers.Flatten()(layers.Activation("relu")(x))
    model = shake(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    x = np.random.default_rng(5).standard_normal((3, 6, 6, 3)).astype("float32")
    result, error = pruned_and_cut(model, x)
    assert error < 1e-5
    assert result.model.get_layer("conv").filters == 4


def test_a_norm_that_was_never_told_keeps_its_channels(tmp_path):
    """Masks from a file: the masked model is the plain one, whose norm sees zeros."""
    inputs = keras.Input((4,))
    x = layers.LayerNormalization(name="norm")(layers.Dense(6, name="a")(inputs))
    x = layers.Dense(8, "relu", name="b")(x)
    model = shake(keras.Model(inputs, layers.Dense(2, name="head")(x)))
    pruner = L1NormPruner(model, HALF)
    pruner.compress()
    pruner.export_model(str(tmp_path / "model.keras"), str(tmp_path / "masks.safetensors"))
    plain = keras.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(6).standard_normal((3, 4)).astype("float32")
    result = speedup(plain, x, masks=tmp_path / "masks.safetensors", inplace=False)
    assert difference(array(plain(x)), array(result.model(x))) < 1e-5
    assert (result.model.get_layer("a").units, result.model.get_layer("b").units) == (6, 4)


def test_strip_gives_norms_all_their_channels_back(caplog):
    model, x = encoder(), tokens()
    pruner = L1NormPruner(model, HALF)
    pruner.compress()
    masked = array(model(x))
    pruner.strip()
    assert type(model.get_layer("first0")) is layers.LayerNormalization
    assert len(model.get_layer("first0").variables) == 2
    assert difference(masked, array(model(x))) > 1e-3
    assert "computed statistics over kept channels" in caplog.text


def test_cutting_does_not_warn_of_the_norms_that_it_keeps(caplog):
    model, x = encoder(), tokens()
    L1NormPruner(model, HALF).compress()
    masked = array(model(x))
    assert difference(masked, array(speedup(model, x).model(x))) < 1e-5
    assert "kept channels" not in caplog.text


def test_norms_follow_masks_that_change_while_a_model_trains():
    model, x = encoder(), tokens(16)
    y = np.zeros(16, "int32")
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(True))
    rules = [{"op_types": ["default"], "final_sparsity": 0.5, "end_epoch": 2}]
    pruner = AGPPruner(model, rules, model.optimizer, "l1", example_inputs=x)
    pruner.compress()
    for epoch in range(3):
        pruner.update_epoch(epoch)
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    expected = array(model(x, training=False))
    result = speedup(model, x)
    assert difference(expected, array(result.model(x, training=False))) < 1e-5
    assert result.model.get_layer("words").output_dim < 8


def test_an_einsum_dense_loses_what_its_equation_makes():
    inputs = keras.Input((5, 4))
    x = layers.EinsumDense("...x,xy->...y", output_shape=8, bias_axes="y", name="a")(inputs)
    x = layers.EinsumDense("abc,cde->abde", output_shape=(5, 3, 6), name="b")(ops.relu(x))
    x = layers.EinsumDense("abde,def->abf", output_shape=(5, 2), bias_axes="f", name="c")(x)
    model = shake(keras.Model(inputs, x))
    groups = channel_groups(model)
    sizes = {(s.tensor, s.dim): g.size for g in groups for s in g.slices}
    assert sizes["a.kernel", 1] == sizes["b.kernel", 0] == 8
    assert (sizes["b.kernel", 1], sizes["b.kernel", 2]) == (3, 6)
    x = np.random.default_rng(7).standard_normal((2, 5, 4)).astype("float32")
    result, error = pruned_and_cut(model, x, [{"op_names": ["a", "b"], "sparsity": 0.5}])
    assert error < 1e-5
    assert result.model.get_layer("b").kernel.shape[0] == 4
    assert result.macs[1] == len(x) * measure(result.model, x, runs=0).macs
