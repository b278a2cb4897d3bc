"""States that do not fit a Keras model: refused, with the model as it was."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.errors import StateError
from lilliput.frameworks.keras.variables import to_array
from lilliput.keras import AGPPruner, PTQQuantizer, QATQuantizer

X = np.random.default_rng(0).standard_normal((8, 6)).astype("float32")


def make_model(use_bias=True):
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(5, "relu", use_bias=use_bias, name="a")
    return keras.Sequential([keras.Input((6,)), hidden, layers.Dense(3, name="b")])


def make_pruner(use_bias=True):
    pruner = AGPPruner(make_model(use_bias), [{"final_sparsity": 0.5, "end_epoch": 2}])
    pruner.compress()
    return pruner


def make_quantizer(kind):
    quantizer = kind(make_model(), [{}])
    quantizer.compress()
    quantizer.calibrate([X])
    return quantizer


def everything(compressor):
    """Return all that load_state() could change, as comparable values."""
    state, model = compressor.state(), compressor.bound_model
    arrays = {f"{a}/{b}": np.array(t) for a, held in state.tensors.items() for b, t in held.items()}
    arrays |= {variable.path: to_array(variable) for variable in model.weights}
    arrays["output"] = model.predict_on_batch(X)
    plain = [repr(state.layers), repr(state.progress), sorted(arrays), len(model.variables)]
    return plain, [arrays[key] for key in sorted(arrays)]


def assert_refused(compressor, state, words):
    before = everything(compressor)
    with pytest.raises(StateError, match=words):
        compressor.load_state(state)
    after = everything(compressor)
    assert before[0] == after[0]
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones(16, "float32"), r"a → bias_mask: shape \[16\], the bias has \[5\]"),
        (np.ones(1, "float32"), r"a → bias_mask: shape \[1\], the bias has \[5\]"),
        (np.ones((), "float32"), r"a → bias_mask: shape \[\], the bias has \[5\]"),
        (np.full(5, 0.5, "float32"), "a → bias_mask: received values other than 0 and 1"),
        (np.full(5, np.nan, "float32"), "a → bias_mask: received values other than 0 and 1"),
    ],
)
def test_a_bias_mask_that_does_not_fit_is_refused_and_changes_nothing(mask, words):
    state = make_pruner().state()
    state.tensors["a"]["bias_mask"] = mask
    assert_refused(make_pruner(), state, words)


def test_a_bias_mask_for_a_layer_without_bias_is_refused():
    state = make_pruner(use_bias=False).state()
    state.tensors["a"]["bias_mask"] = np.ones(5, "float32")
    assert_refused(make_pruner(use_bias=False), state, "the layer has no bias")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.progress.update(now_epoch=-5), "progress → now_epoch: received -5"),
        (lambda s: s.tensors["a"].update(evil=np.ones(2)), "a → evil: unknown here"),
        (lambda s: s.tensors["a"].pop("weight_mask"), "a → weight_mask: missing"),
        (lambda s: s.tensors["a"].update(weight_mask=np.ones(6)), r"a → weight_mask: shape \[6\]"),
        (lambda s: s.layers["a"]["values"].update(module=1), "a → module"),
    ],
)
def test_a_state_with_something_impossible_or_unknown_is_refused(change, words):
    state = make_pruner().state()
    change(state)
    assert_refused(make_pruner(), state, words)


@pytest.mark.parametrize("kind", [PTQQuantizer, QATQuantizer])
@pytest.mark.parametrize(
    "change",
    [
        {"places": {"dict": {"input": {"dict": {"module": "nowhere", "by": None}}}}},
        {"places": {"dict": {"input": 7}}},
        {"norm": "nowhere"},
        {"is_on": 1},
        {"input_is_known": None},
    ],
    ids=str,
)
def test_what_the_checks_cannot_see_is_rolled_back(kind, change):
    state = make_quantizer(kind).state()
    state.layers["a"]["values"].update(change)
    assert_refused(make_quantizer(kind), state, "does not fit|damaged")
