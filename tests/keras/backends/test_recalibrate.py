"""Batch norms get the statistics of the data, exactly, on every backend; everything else stays."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.keras import L1NormPruner, NaiveQuantizer, recalibrate, speedup

X = np.random.default_rng(0).standard_normal((21, 8, 8, 3)).astype("float32")


def small_net(**options):
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, name="first")(x)
    x = layers.ReLU()(layers.BatchNormalization(name="norm1", momentum=0.3, **options)(x))
    x = layers.Conv2D(6, 3, name="second")(layers.Dropout(0.5)(x))
    x = layers.ReLU()(layers.BatchNormalization(name="norm2", **options)(x))
    x = layers.Dense(4, name="head")(layers.Flatten()(x))
    return keras.Model(inputs, x)


def arrays(model):
    return {v.path: np.array(ops.convert_to_numpy(v)) for v in model.variables}


def statistics(layer):
    return [np.array(ops.convert_to_numpy(v)) for v in (layer.moving_mean, layer.moving_variance)]


def convolved(x, layer):
    """A valid 3×3 convolution and its bias, in NumPy."""
    kernel, bias = (np.asarray(ops.convert_to_numpy(v), "float64") for v in layer.weights)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows, kernel) + bias


def normalized(x):
    """What a new norm makes of a batch in training, and a ReLU of that."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return np.maximum((x - mean) / np.sqrt(variance + 1e-3), 0)


@pytest.mark.parametrize("options", [{}, {"trainable": False, "scale": False}])
def test_statistics_are_those_of_all_examples_however_they_are_batched(options):
    model, parts = small_net(**options), [X[:4], X[4:20], X[20:]]
    recalibrate(model, [parts[0], parts[1], (parts[2], np.zeros(1))])
    first = [convolved(part.astype("float64"), model.get_layer("first")) for part in parts]
    second = [convolved(normalized(part), model.get_layer("second")) for part in first]
    for name, seen in (("norm1", first), ("norm2", second)):
        rows = np.concatenate([part.reshape(-1, part.shape[-1]) for part in seen])
        mean, variance = statistics(model.get_layer(name))
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance, rows.var(0, ddof=1), rtol=1e-4)


def test_only_statistics_change_and_every_class_is_as_it_was():
    model = small_net()
    before, kinds = arrays(model), [type(layer) for layer in model.layers]
    recalibrate(model, [X])
    changed = {path for path, value in arrays(model).items() if not (value == before[path]).all()}
    assert changed == {f"norm{i}/moving_{x}" for i in (1, 2) for x in ("mean", "variance")}
    assert [type(layer) for layer in model.layers] == kinds
    assert not any(hasattr(layer, "_lilliput") for layer in model.layers)


def test_a_compiled_prediction_follows():
    model = small_net()
    model.compile("sgd", "mse")
    stale = model.predict(X, verbose=0)
    recalibrate(model, [X])
    fresh = model.predict(X, verbose=0)
    assert np.abs(fresh - stale).max() > 0.01
    np.testing.assert_allclose(fresh, ops.convert_to_numpy(model(X)), rtol=1e-4, atol=1e-5)


def test_a_masked_and_a_cut_model_get_the_same_statistics():
    masked = small_net()
    L1NormPruner(
        masked, [{"op_types": ["Conv2D"], "sparsity": 0.5}], example_inputs=X[:2]
    ).compress()
    shrunk = speedup(masked, X[:2], inplace=False).model
    for model in (masked, shrunk):
        recalibrate(model, [X])
    kept = ops.convert_to_numpy(masked.get_layer("norm1").gamma) != 0
    assert kept.sum() == 4
    for one, two in zip(*(statistics(m.get_layer("norm1")) for m in (masked, shrunk)), strict=True):
        np.testing.assert_allclose(one[kept], two, rtol=1e-5, atol=1e-6)
    outputs = [ops.convert_to_numpy(model(X)) for model in (masked, shrunk)]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_with_the_original_norms_put_out_what_they_do_there_on_any_data():
    original, model = small_net(), small_net()
    recalibrate(original, [X])
    model.set_weights(original.get_weights())
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=X[:2]).compress()
    other = 3 * np.random.default_rng(4).random((32, 8, 8, 3)).astype("float32") + 1
    before = arrays(original)
    seen = [keras.Model(m.input, m.get_layer("norm2").output) for m in (model, original)]

    def rows():
        return [ops.convert_to_numpy(m(other)).astype("float64").reshape(-1, 6) for m in seen]

    here, there = rows()
    assert np.abs(here.mean(0) - there.mean(0)).max() > 0.5
    recalibrate(model, [other], original=original)
    here, there = rows()
    np.testing.assert_allclose(here.mean(0), there.mean(0), atol=1e-3)
    np.testing.assert_allclose(here.std(0), there.std(0), rtol=1e-2)
    for path, value in arrays(original).items():
        np.testing.assert_array_equal(value, before[path])
    with pytest.raises(StageError, match=r"'norm1' has 4 channels here and 8 in the original"):
        recalibrate(speedup(model, X[:2]).model, [X], original=original)


def test_channels_may_come_first_and_a_shared_norm_sees_both_of_its_inputs():
    norm = layers.BatchNormalization(axis=1)
    a, b = keras.Input((3, 5)), keras.Input((3, 5))
    model = keras.Model([a, b], layers.Add()([norm(a), norm(b)]))
    one, two = np.random.default_rng(1).standard_normal((2, 16, 3, 5)).astype("float32")
    recalibrate(model, [([one, two + 3],)])
    seen = np.concatenate([one, two + 3]).astype("float64").transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_allclose(statistics(norm)[0], seen.mean(1), rtol=1e-5)
    np.testing.assert_allclose(statistics(norm)[1], seen.var(1, ddof=1), rtol=1e-5)


def test_steps_that_a_mask_hides_do_not_count():
    x = inputs = keras.Input((None, 3))
    norm = layers.BatchNormalization()
    model = keras.Model(inputs, norm(layers.Masking()(x)))
    data = np.random.default_rng(2).standard_normal((16, 6, 3)).astype("float32") + 5
    data[:9, 2:] = 0
    recalibrate(model, [data])
    seen = np.concatenate([data[:9, :2].reshape(-1, 3), data[9:].reshape(-1, 3)]).astype("float64")
    np.testing.assert_allclose(statistics(norm)[0], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics(norm)[1], seen.var(0, ddof=1), rtol=1e-4)


def test_a_norm_that_no_batch_reaches_keeps_its_statistics():
    one, two = layers.BatchNormalization(), layers.BatchNormalization()
    model = keras.Sequential([keras.Input((2,)), one, two])
    data = np.random.default_rng(3).standard_normal((8, 2)).astype("float32") + 3
    recalibrate(model, [data], lambda model, x: one(x))
    assert statistics(one)[0].min() > 1
    assert [x.tolist() for x in statistics(two)] == [[0, 0], [1, 1]]


def broken(batches):
    yield from batches
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("batches", "error", "text"),
    [
        (lambda: [], AlgorithmError, "no batch was run"),
        (lambda: broken([X[:4]]), OSError, "the disk is gone"),
        (lambda: [X, np.full_like(X, np.nan)], AlgorithmError, r"'norm1' received NaN"),
    ],
)
def test_a_model_is_as_it_was_when_it_cannot_be_recalibrated(batches, error, text):
    model = small_net()
    before = arrays(model)
    with pytest.raises(error, match=text):
        recalibrate(model, batches())
    for path, value in arrays(model).items():
        np.testing.assert_array_equal(value, before[path])
    assert not any(hasattr(layer, "_lilliput") for layer in model.layers)


def test_what_cannot_be_recalibrated_is_refused():
    plain = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
    with pytest.raises(UnsupportedModelError, match="no batch norms"):
        recalibrate(plain, [np.zeros((4, 2))])
    flat = keras.Sequential([keras.Input((2,)), layers.BatchNormalization(name="norm")])
    with pytest.raises(AlgorithmError, match=r"'norm' 1 values per channel, expected at least two"):
        recalibrate(flat, [np.zeros((4, 2)), np.ones((1, 2))])
    NaiveQuantizer(plain, [{"op_types": ["Dense"]}]).compress()
    both = keras.Sequential([keras.Input((2,)), plain, flat])
    with pytest.raises(StageError, match="recalibrate first"):
        recalibrate(both, [np.zeros((4, 2))])


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="predict compiles nothing on torch")
def test_a_forward_that_compiles_the_model_is_refused():
    flat = keras.Sequential([keras.Input((2,)), layers.BatchNormalization(name="norm")])
    with pytest.raises(UnsupportedModelError, match=r"'norm' runs inside a compiled function"):
        recalibrate(flat, [np.zeros((4, 2))], lambda model, x: model.predict(x, verbose=0))
    assert statistics(flat.layers[0])[0].tolist() == [0, 0]
