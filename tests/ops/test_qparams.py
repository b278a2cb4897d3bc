import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.ops.qparams import Grid, QParams, fit, spread

ENDS = st.floats(-1e4, 1e4, width=32)


GRIDS = [
    Grid(bits, *flags)
    for bits, *flags in itertools.product(range(1, 17), *[[False, True]] * 3)
    if bits > 1 or not any(flags)  # one bit has no two sides
]


def name(grid):
    words = "symmetric" if grid.is_symmetric else "affine", "narrow" if grid.is_narrow else "full"
    return "-".join((grid.dtype, *words))


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_the_integers_are_those_of_the_type(grid):
    integers = range(-(2 ** (grid.bits - 1)), 2 ** (grid.bits - 1))
    if not grid.is_signed:
        integers = range(2**grid.bits)
    integers = list(integers)[int(grid.is_narrow) :]
    assert (grid.low, grid.high) == (integers[0], integers[-1])
    assert grid.fixed_zero_point in integers
    assert grid.dtype == f"{'int' if grid.is_signed else 'uint'}{grid.bits}"


@pytest.mark.parametrize("grid", GRIDS, ids=name)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(first=ENDS, second=ENDS)
def test_a_fitted_grid_covers_the_range_and_holds_zero(grid, first, second):
    low, high = sorted((first, second))
    scale, zero = fit(torch.tensor(low), torch.tensor(high), grid)
    assert float(scale) > 0 and float(zero).is_integer()
    assert grid.low <= float(zero) <= grid.high
    if grid.is_symmetric:
        assert float(zero) == grid.fixed_zero_point
    bottom, top = ((end - float(zero)) * float(scale) for end in (grid.low, grid.high))
    slack = float(scale) * 0.5001 + 1e-6 * max(-low, high)
    assert bottom - slack <= min(low, 0) and max(high, 0) <= top + slack
    # No finer than needed, but for the rounding of the zero point.
    widest = max(-low, high) if grid.is_symmetric else max(high, 0) - min(low, 0)
    longest = grid.high - grid.fixed_zero_point if grid.is_symmetric else grid.high - grid.low
    assert float(scale) <= max(widest / longest, 1e-37) * 1.0001


@pytest.mark.parametrize("grid", [Grid(8, True, True), Grid(8, False, False)], ids=name)
def test_a_range_without_extent_gives_a_scale_that_can_be_divided_by(grid):
    scale, zero = fit(torch.tensor(0.0), torch.tensor(0.0), grid)
    assert float(scale) > 0 and float(1 / scale) < float("inf")
    assert QParams(scale, zero, grid).to_integers(torch.zeros(2)).tolist() == [float(zero)] * 2


def test_half_precision_ends_are_fitted_in_full_precision():
    scale, _ = fit(torch.tensor(-1e-4).half(), torch.tensor(1e-4).half(), Grid(8, True, True))
    assert scale.dtype == torch.float32 and float(scale) == pytest.approx(1e-4 / 127, rel=1e-2)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_values_per_channel_multiply_along_their_axis(axis):
    grid = Grid(8, True, True, axis=axis)
    values = torch.arange(1.0, [2, 3, 4][axis] + 1)
    found = torch.ones(2, 3, 4) * spread(values, (2, 3, 4), grid)
    assert found.shape == (2, 3, 4)
    for index, value in enumerate(values):
        assert bool((found.select(axis, index) == value).all())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_values_per_group_repeat_and_the_last_may_be_cut(size, axis):
    grid = Grid(4, True, True, axis=axis, group_size=size)
    shape = (5, 5)
    groups = -(-5 // size)
    values = torch.arange(5.0 * groups).view((groups, 5) if axis == 0 else (5, groups))
    found = spread(values, shape, grid)
    assert found.shape == shape
    for i, j in itertools.product(range(5), repeat=2):
        place = (i // size, j) if axis == 0 else (i, j // size)
        assert found[i, j] == values[place]


def test_integers_and_back():
    grid = Grid(4, False, False, axis=0)
    held = QParams(torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.0]), grid)
    x = torch.tensor([[-9.0, 0.0, 0.74], [-1.0, 5.0, 99.0]])
    assert held.to_integers(x).tolist() == [[0, 3, 4], [0, 2, 15]]
    assert held.to_reals(held.to_integers(x)).tolist() == [[-1.5, 0, 0.5], [0, 4, 30]]


def test_words_for_reports():
    assert Grid(4, True, True, True, 1, 32).granularity == "per_group"
    assert [Grid(8, True, True, axis=a).granularity for a in (None, 0)] == [
        "per_tensor",
        "per_channel",
    ]
