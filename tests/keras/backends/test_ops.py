"""The vocabulary of Keras against plain NumPy, and fake quantization against torch's own."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

from lilliput.ops.fakequant import fake_quantize
from lilliput.ops.masks import prune_smallest, share_count
from lilliput.ops.namespace import NAMES, namespace
from lilliput.ops.qparams import Grid, QParams, fit

ARRAYS = arrays(
    np.float32,
    st.sampled_from([(1, 1), (3, 4), (5, 7)]),  # few shapes: JAX compiles for each
    elements=st.floats(-8, 8, width=32, allow_subnormal=False),
)


def numpy_of(tensor):
    return ops.convert_to_numpy(tensor)


def test_every_name_is_there():
    from lilliput.frameworks.keras import ops as vocabulary

    assert [name for name in NAMES if not hasattr(vocabulary, name)] == []


def test_a_variable_and_a_tensor_have_a_vocabulary():
    variable = keras.Variable(np.ones(3, "float32"))
    assert namespace(variable).size(variable) == 3
    assert namespace(ops.ones(3)).shape(ops.ones(3)) == (3,)
    with pytest.raises(TypeError, match="expected a tensor"):
        namespace(np.ones(3))


@settings(max_examples=40, deadline=None)
@given(ARRAYS, st.data())
def test_masks_have_exact_counts_and_keep_the_first_of_equals(score, data):
    count = data.draw(st.integers(0, score.size))
    mask = numpy_of(prune_smallest(ops.convert_to_tensor(score), count))
    order = np.argsort(score.ravel(), kind="stable")
    kept = np.ones(score.size, np.float32)
    # Of equals at the border those that come first are kept: the last ones go.
    border = np.sort(score.ravel())[count - 1] if count else -np.inf
    equal = [i for i in order if score.ravel()[i] == border]
    smaller = [i for i in order if score.ravel()[i] < border]
    kept[smaller] = 0
    gone = count - len(smaller)
    kept[equal[len(equal) - gone :] if gone else []] = 0
    np.testing.assert_array_equal(mask, kept.reshape(score.shape))


def test_shares_add_up():
    scores = [ops.convert_to_tensor(np.arange(4, dtype="float32")), ops.ones((2, 3))]
    assert sum(share_count(scores, 5, [4, 6])) == 5


GRIDS = [
    Grid(8, is_signed=True, is_symmetric=True, is_narrow=True, axis=1),
    Grid(8, is_signed=False, is_symmetric=False),
    Grid(4, is_signed=True, is_symmetric=False),
    Grid(3, is_signed=True, is_symmetric=True, axis=0, group_size=2),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.dtype}-{grid.granularity}")
@settings(max_examples=20, deadline=None)
@given(ARRAYS)
def test_fake_quantization_is_the_formula(grid, array):
    from lilliput.ops.fakequant import ranges

    tensor = ops.convert_to_tensor(array)
    low, high = ranges(tensor, grid)
    scale, zero = fit(low * 0.7, high * 0.7, grid)
    qparams = QParams(scale, zero, grid)
    found = numpy_of(fake_quantize(tensor, qparams))
    steps, zeros = (numpy_of(qparams.spread(x, tensor)) for x in (scale, zero))
    bottom, top = grid.low - zeros, grid.high - zeros
    rounded = np.round(array * (np.float32(1) / steps))
    expected = np.clip(rounded, bottom, top) * steps
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def gradient(function, array):
    """Return the gradient of the sum of a function's outputs, weighted by position."""
    weights = np.arange(1, array.size + 1, dtype="float32").reshape(array.shape)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow

        value = tensorflow.constant(array)
        with tensorflow.GradientTape() as tape:
            tape.watch(value)
            loss = ops.sum(function(value) * weights)
        return tape.gradient(loss, value).numpy()
    if backend == "jax":
        import jax

        return np.asarray(jax.grad(lambda x: ops.sum(function(x) * weights))(array))
    import torch

    value = torch.tensor(array, requires_grad=True)
    (function(value) * torch.from_numpy(weights)).sum().backward()
    return value.grad.numpy()


@settings(max_examples=25, deadline=None)
@given(ARRAYS)
def test_the_gradient_passes_inside_the_range_only(array):
    grid = Grid(4, is_signed=True, is_symmetric=True)
    scale, zero = ops.convert_to_tensor(np.float32(0.5)), ops.convert_to_tensor(np.float32(0))
    weights = np.arange(1, array.size + 1, dtype="float32").reshape(array.shape)
    found = gradient(lambda x: fake_quantize(x, QParams(scale, zero, grid)), array)
    quotient = array / 0.5
    inside = (quotient > -8.5) & (quotient < 7.5)
    outside = (quotient < -8.5) | (quotient > 7.5)
    np.testing.assert_allclose(found[inside], weights[inside])
    np.testing.assert_allclose(found[outside], 0)
