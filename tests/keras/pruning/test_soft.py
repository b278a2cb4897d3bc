"""Soft thresholds in a compiled ``fit``, against a loop in NumPy, and on the battery."""

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy

from lilliput.errors import StageError
from lilliput.keras import AGPPruner, BNNQuantizer, DoReFaQuantizer, speedup
from lilliput.ops.schedule import cubic_sparsity
from lilliput.testing.keras import Subject, pruner_checks

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RULE = {"final_sparsity": 0.8, "end_epoch": 2}
ROWS = 6  # of a batch
DEFAULT = {
    *("check_masks", "check_determinism", "check_state_round_trip", "check_strip_keeps_outputs"),
    *("check_quantizing_keeps_zeros", "check_failing_calc_mask_leaves_model_alone"),
    *("check_pruning_again", "check_compiled_functions_follow", "check_dtypes"),
}


class SoftPhase(AGPPruner):
    """AGP with soft thresholds, for checks that end before the masks are hard."""

    regrows = True
    computes_weights = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, soft=True, hard_epoch=9, **kwargs)


def shrunk(weight, sparsity):
    count = round(weight.size * sparsity)
    size = np.abs(weight)
    border = np.sort(size, axis=None)[count - 1] if count else 0.0
    kept = np.where(size > border, size, 0).sum(0) / size.sum(0)
    return np.sign(weight) * np.maximum(size - border, 0) * 1.01 / (kept + 0.01)


def test_a_compiled_fit_is_the_loop_of_the_formula():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2 * ROWS, 5)).astype("float32")
    y = generator.normal(size=(2 * ROWS, 4)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, use_bias=False)])
    raw = generator.normal(size=(5, 4)).astype("float32") / 2
    model.layers[0].kernel.assign(raw)
    pruner = AGPPruner(model, [RULE], soft=True)
    pruner.compress()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    given = {"batch_size": ROWS, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=5, callbacks=[pruner.callback()], **given)
    mask = None
    for epoch in range(5):
        target = cubic_sparsity(epoch, 0.0, 0.8, 0, 2)
        if epoch == 3:
            raw = shrunk(raw, target)
            mask = raw != 0
        for part in (slice(ROWS), slice(ROWS, None)):
            seen = shrunk(raw, target) if mask is None else raw
            gradient = x[part].T @ (x[part] @ seen - y[part]) * 2 / (ROWS * 4)
            raw = raw - 0.1 * gradient * (1 if mask is None else mask)
    np.testing.assert_allclose(convert_to_numpy(model.layers[0].kernel), raw, atol=1e-5)
    assert int((convert_to_numpy(model.layers[0].kernel) == 0).sum()) == 16


def test_a_model_whose_weights_are_computed_is_not_cut():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    pruner = AGPPruner(model, [{**RULE, "initial_sparsity": 0.5}], soft=True)
    pruner.compress()
    with pytest.raises(StageError, match="strip\\(\\) the pruner first"):
        speedup(model)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(x, marks=[] if x.__name__ in DEFAULT else [pytest.mark.slow], id=x.__name__)
        for x in pruner_checks()
    ],
)
def test_the_soft_phase_conforms(check):
    check(Subject(SoftPhase))


@pytest.mark.parametrize("make", [None, DoReFaQuantizer, BNNQuantizer])
def test_pruned_weights_are_trained_under_any_quantizer(make):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, use_bias=False)])
    before = convert_to_numpy(model.layers[0].kernel)
    rule = {"initial_sparsity": 0.5, "final_sparsity": 0.5, "end_epoch": 2}
    pruner = AGPPruner(model, [rule], soft=True, hard_epoch=9)
    pruner.compress()
    if make is not None:
        make(model, [{"op_types": ["Dense"], "quant_types": ["weight"]}]).compress()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
    pruned = np.abs(before) <= np.sort(np.abs(before), axis=None)[9]
    assert (convert_to_numpy(model(x)) != 0).any()
    model.fit(x, x[:, :4], batch_size=8, verbose=0, callbacks=[pruner.callback()])
    after = convert_to_numpy(pruner.get_modules_wrapper()[0].weight)
    assert pruned.sum() == 10 and (after[pruned] != before[pruned]).all()
