import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.frameworks.torch import ops
from lilliput.ops.fakequant import (
    covering,
    fake_quantize,
    integer_range,
    mean_magnitude,
    quantize_symmetric,
)
from lilliput.ops.qparams import Grid, QParams

FLOATS = st.lists(
    st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20),
    min_size=1,
    max_size=40,
)


def plain_reference(x, bits):
    """The formula in float64 NumPy."""
    top = 2 ** (bits - 1) - 1
    scale = np.abs(x).max() / top if np.abs(x).max() > 0 else 1.0
    return np.clip(np.round(x / scale), -top, top) * scale, scale


@settings(max_examples=400, deadline=None, derandomize=True)
@given(values=FLOATS, bits=st.integers(2, 16))
def test_it_follows_the_formula_and_its_algebra(values, bits):
    x = torch.tensor(values, dtype=torch.float64)
    q = quantize_symmetric(x, bits)
    expected, scale = plain_reference(np.array(values), bits)
    # A value exactly between two levels may go either way: allow one level where it is that close.
    distance = np.abs(np.abs(x.numpy() / scale % 1) - 0.5)
    clear = distance > 1e-6
    np.testing.assert_allclose(q.numpy()[clear], expected[clear], rtol=1e-12, atol=1e-300)
    assert (np.abs(q.numpy() - x.numpy()) <= scale * (0.5 + 1e-6)).all()
    assert len(np.unique(np.round(q.numpy() / scale))) <= 2**bits - 1
    assert (q[x == 0] == 0).all()
    again = quantize_symmetric(q, bits)
    np.testing.assert_allclose(again.numpy(), q.numpy(), rtol=1e-12)
    order = np.argsort(x.numpy(), kind="stable")
    assert (np.diff(q.numpy()[order]) >= -1e-12 * scale).all()


@pytest.mark.parametrize("shape", [(64, 128), (16, 3, 3, 3)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_fast_form_is_bit_equal_to_torchs_kernel(shape, bits):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(bits))
    low, high = integer_range(bits)
    scale = x.abs().max() / high
    expected = torch.fake_quantize_per_tensor_affine(x, float(scale), 0, low, high)
    assert torch.equal(ops.fake_quantize(x, scale, low, high), expected)


def test_one_bit_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        integer_range(1)


def test_an_all_zero_tensor_stays_zero():
    assert torch.equal(quantize_symmetric(torch.zeros(5), 8), torch.zeros(5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("magnitude", [1e-3, 1e-7, 1e-30, 1e-39])
def test_tiny_weights_in_any_precision_stay_finite_and_zero_stays_zero(dtype, magnitude):
    x = torch.tensor([0.0, 1.0, -0.5]).mul(magnitude).to(dtype)
    q = quantize_symmetric(x, 8)
    assert q.dtype == dtype and bool(torch.isfinite(q).all()) and q[0] == 0
    if x.abs().max() > 1e-37:  # below, numbers lose their last bits and become zero
        assert bool((q - x).abs().max() <= x.abs().max() / 64)


# -- grids of any kind -----------------------------------------------------------------------------


@st.composite
def grids(draw, axis=None, group_size=None):
    """Every grid that a rule can ask for."""
    bits = draw(st.integers(1, 16))
    if bits == 1:
        return Grid(1, False, False, False, axis, group_size)
    flags = [draw(st.booleans()) for _ in range(3)]
    return Grid(bits, *flags, axis, group_size)


def numbers(seed, shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shift, size = torch.randn(2, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=dtype) * size.exp() * 10 + shift * 10


def in_numpy(x, scale, zero, grid):
    """The formula as it is written in the documentation."""
    integers = np.clip(np.round(x * (1 / scale)) + zero, grid.low, grid.high)
    return (integers - zero) * scale


@settings(max_examples=300, deadline=None, derandomize=True)
@given(values=FLOATS, grid=grids())
def test_a_grid_that_covers_obeys_its_algebra(values, grid):
    x = torch.tensor(values, dtype=torch.float64)
    held = covering(x, grid)
    scale, zero = float(held.scale), float(held.zero_point)
    rounded = fake_quantize(x, held)
    np.testing.assert_array_equal(rounded.numpy(), in_numpy(x.numpy(), scale, zero, grid))
    assert torch.equal(fake_quantize(torch.zeros(3, dtype=x.dtype), held), torch.zeros(3))
    assert bool(((rounded - x).abs() <= scale / 2 * (1 + 1e-9)).all()), "nothing is cut off"
    assert torch.equal(fake_quantize(rounded, held), rounded), "idempotent"
    ordered = fake_quantize(x.sort().values, held)
    assert bool((ordered.diff() >= 0).all()), "monotone"
    integers = held.to_integers(x)
    assert torch.equal(integers, integers.round())
    assert grid.low <= integers.min() and integers.max() <= grid.high
    np.testing.assert_allclose(held.to_reals(integers), rounded, rtol=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), grid=grids(), share=st.floats(0.05, 1))
def test_what_is_inside_a_narrower_range_is_rounded_and_the_rest_is_clipped(seed, grid, share):
    x = numbers(seed, (200,))
    wide = covering(x, grid)
    held = QParams(wide.scale * share, wide.zero_point, grid)
    rounded, scale = fake_quantize(x, held), float(held.scale)
    bottom, top = ((end - float(held.zero_point)) * scale for end in (grid.low, grid.high))
    assert bool((rounded >= bottom - 1e-9 * scale).all() and (rounded <= top + 1e-9 * scale).all())
    inside = (x >= bottom) & (x <= top)
    assert bool(((rounded - x)[inside].abs() <= scale / 2 * (1 + 1e-9)).all())
    np.testing.assert_allclose(rounded[x > top], top, rtol=1e-12)
    np.testing.assert_allclose(rounded[x < bottom], bottom, rtol=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), grid=grids(), axis=st.integers(-3, 2), data=st.data())
def test_per_channel_is_a_loop_of_per_tensor(seed, grid, axis, data):
    x = numbers(seed, data.draw(st.tuples(*[st.integers(1, 4)] * 3)))
    own = dataclasses.replace(grid, axis=axis)
    rounded = fake_quantize(x, covering(x, own)).unbind(axis)
    for part, expected in zip(rounded, x.unbind(axis), strict=True):
        assert torch.equal(part, fake_quantize(expected, covering(expected, grid)))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), grid=grids(), axis=st.integers(0, 2), data=st.data())
def test_per_group_is_a_loop_over_slices_and_the_last_may_be_shorter(seed, grid, axis, data):
    x = numbers(seed, data.draw(st.tuples(*[st.integers(1, 7)] * 3)))
    size = data.draw(st.integers(1, 8))
    own = dataclasses.replace(grid, axis=axis, group_size=size)
    held = covering(x, own)
    rounded, rows = fake_quantize(x, held), mean_magnitude(x, own)
    assert held.scale.shape == rows.shape
    assert held.scale.shape[axis] == math.ceil(x.shape[axis] / size)
    for start in range(0, x.shape[axis], size):
        pieces = (t.narrow(axis, start, min(size, x.shape[axis] - start)) for t in (x, rounded))
        piece, result = (t.movedim(axis, -1).reshape(-1, t.shape[axis]) for t in pieces)
        means = rows.select(axis, start // size).reshape(-1)
        for row, expected, mean in zip(piece, result, means, strict=True):
            assert torch.equal(fake_quantize(row, covering(row, grid)), expected)
            if x.shape[axis] % size == 0:
                assert float(mean) == pytest.approx(float(row.abs().mean()))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_the_mean_magnitude_is_that_of_each_slice(axis):
    x = numbers(3, (4, 5, 6))
    found = mean_magnitude(x, Grid(8, True, True, axis=axis))
    others = None if axis is None else tuple(i for i in range(3) if i != axis % 3)
    np.testing.assert_allclose(found, np.abs(x.numpy()).mean(axis=others))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("size", [1e-6, 1.0, 3e4])
def test_half_precision_is_rounded_in_full_precision_and_comes_back_as_half(
    dtype, is_symmetric, size
):
    x = (numbers(0, (40,)).clamp(-30, 30) / 30 * size).to(dtype).requires_grad_()
    grid = Grid(8, is_symmetric, is_symmetric)
    held = covering(x.detach(), grid)
    assert held.scale.dtype == torch.float32
    rounded = fake_quantize(x, held)
    rounded.sum().backward()
    expected = fake_quantize(x.detach().float(), held).to(dtype)
    assert rounded.dtype == x.grad.dtype == dtype and torch.equal(rounded.detach(), expected)
    assert bool(rounded.isfinite().all()) and bool((x.grad == 1).all())


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_the_shortcut_for_covering_grids_gives_the_same(is_symmetric):
    x = numbers(1, (6, 7), torch.float32)
    grid = Grid(8, is_symmetric, is_symmetric, axis=0)
    held = covering(x, grid)
    assert torch.equal(fake_quantize(x, held, covers=True), fake_quantize(x, held))


def test_the_gradient_passes_inside_the_range_only():
    grid = Grid(4, False, False)
    held = QParams(torch.tensor(0.5), torch.tensor(3.0), grid)  # from -1.5 to 6
    x = torch.tensor([-9.0, -1.8, -1.7, 0.0, 6.2, 6.3, 40.0], requires_grad=True)
    fake_quantize(x, held).sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]
