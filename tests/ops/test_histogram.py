import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.ops import histogram as histogram_module
from lilliput.ops.histogram import (
    Histogram,
    entropy_range,
    grid_errors,
    mse_range,
    percentile_range,
)
from lilliput.ops.qparams import Grid

UINT8 = Grid(8, False, False)
INT8 = Grid(8, True, True, True)


def numbers(seed, count, shift=0.0, size=1.0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * size + shift


def counted(*batches, bins=2048):
    histogram = Histogram(bins)
    for batch in batches:
        histogram.add(batch)
    return histogram


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.floats(-50, 50), st.floats(0, 20)), min_size=1, max_size=6
    )
)
def test_every_value_is_counted_near_its_place(batches):
    data = [numbers(i, n, shift, size) for i, (n, shift, size) in enumerate(batches)]
    histogram, all_ = counted(*data), torch.cat(data).double().numpy()
    assert histogram.counts.sum() == len(all_)
    assert histogram.low <= min(all_.min(), 0) and max(all_.max(), 0) <= histogram.high
    # Each time the range grows, values move by half of a bin at most.
    width = (histogram.high - histogram.low) / histogram.counts.size
    mean = (histogram.centers * histogram.counts).sum() / len(all_)
    assert abs(mean - all_.mean()) <= width * len(data) + 1e-6


def test_one_batch_is_counted_as_numpy_does():
    x = numbers(0, 5000)
    histogram = counted(x, bins=64)
    expected, _ = np.histogram(x.numpy(), 64, (histogram.low, histogram.high))
    assert np.abs(histogram.counts - expected).sum() <= 2, "values at the edge of two bins"
    assert (histogram.low, histogram.high) == (float(x.min()), float(x.max()))


def test_large_tensors_are_sampled_and_keep_their_ends(monkeypatch):
    monkeypatch.setattr(histogram_module, "_SAMPLED", 1 << 12)
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    x[7, 9] = 25.0
    sampled, full = Histogram(64), Histogram(64)
    sampled.add(x)
    monkeypatch.setattr(histogram_module, "_SAMPLED", 1 << 30)
    full.add(x)
    assert (sampled.low, sampled.high) == (full.low, full.high)
    assert sampled.counts.sum() == pytest.approx(x.numel())
    assert np.abs(sampled.counts - full.counts).sum() < 0.1 * x.numel()


@pytest.mark.parametrize("shape", [(32, 64, 7, 7), (8, 36, 36, 3), (16, 5, 90)])
def test_every_column_has_its_turn_in_a_sample(shape, monkeypatch):
    monkeypatch.setattr(histogram_module, "_SAMPLED", 1 << 12)
    x = torch.arange(shape[-1]).expand(shape).float().contiguous()
    histogram = Histogram(shape[-1])
    histogram.add(x)
    np.testing.assert_allclose(histogram.counts, x.numel() / shape[-1], rtol=0.02)


def test_nothing_but_zeros_and_then_something():
    histogram = counted(torch.zeros(10))
    assert (histogram.low, histogram.high, histogram.counts.sum()) == (0, 0, 10)
    histogram.add(torch.tensor([2.0, 4.0]))
    assert histogram.counts.sum() == 12 and histogram.counts[0] == 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_shows_in_the_ends(bad):
    histogram = counted(torch.tensor([1.0, bad]))
    assert not np.isfinite([histogram.low, histogram.high]).all()


def test_as_data_and_back():
    histogram = counted(numbers(0, 100), numbers(1, 100) * 5)
    again = Histogram().load(histogram.state())
    assert (again.low, again.high) == (histogram.low, histogram.high)
    np.testing.assert_array_equal(again.counts, histogram.counts)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9, 100.0])
def test_percentiles_are_those_of_numpy_within_a_bin(percentile):
    x = numbers(0, 20000, 0.5)
    histogram = counted(x)
    low, high = percentile_range(histogram, percentile)
    width = (histogram.high - histogram.low) / 2048
    expected = np.percentile(x.numpy(), [100 - percentile, percentile])
    # The tails are thin: the next value may be some bins away.
    slack = 2 * width + (0.1 if percentile > 99.5 else 0.01)
    np.testing.assert_allclose([low, high], expected, atol=slack)


def test_percentiles_include_zero():
    assert percentile_range(counted(numbers(0, 1000, 50)), 99)[0] == 0
    assert percentile_range(counted(numbers(0, 1000, -50)), 99)[1] == 0


def error_on(x, low, high, grid):
    """The mean squared error on the data itself, in NumPy."""
    if grid.is_symmetric:
        scale, zero = max(-low, high) / (grid.high - grid.fixed_zero_point), grid.fixed_zero_point
    else:
        scale = (high - low) / (grid.high - grid.low)
        zero = grid.low + round(-low / scale)
    integers = np.clip(np.round(x / scale) + zero, grid.low, grid.high)
    return float((((integers - zero) * scale - x) ** 2).mean())


CASES = {
    "gaussian": lambda: numbers(0, 4000),
    "shifted": lambda: numbers(1, 4000, 1.0),
    "relu": lambda: numbers(2, 4000).relu(),
    "outliers": lambda: torch.cat([numbers(3, 4000), torch.tensor([40.0, -25.0])]),
}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_the_range_of_least_error_is_as_good_as_brute_force(case, bits, is_symmetric):
    x = CASES[case]().double().numpy()
    grid = Grid(bits, is_symmetric, is_symmetric, is_symmetric)
    found = error_on(x, *mse_range(counted(torch.from_numpy(x)), grid), grid)
    low, high = min(x.min(), 0), max(x.max(), 0)
    shares = np.linspace(0.02, 1, 50)
    if is_symmetric:
        tried = [error_on(x, -s * max(-low, high), s * max(-low, high), grid) for s in shares]
    else:
        lows = shares if low < 0 else [1.0]
        tried = [error_on(x, s * low, t * high, grid) for s in lows for t in shares]
    assert found <= min(tried) * (1.05 if is_symmetric else 1.15)
    assert found <= error_on(x, low, high, grid) * 1.001, "no worse than covering all"


def error_of_one(histogram, low, high, grid):
    values, counts = histogram.centers, histogram.counts
    if grid.is_symmetric:
        zero = grid.fixed_zero_point
        scale = max(high / (grid.high - zero), -low / max(zero - grid.low, 1))
    else:
        scale = (high - low) / (grid.high - grid.low)
        zero = grid.low + round(-low / scale) if scale > 0 else grid.low
    if scale <= 0:
        return float((counts * values**2).sum() / counts.sum())
    rounded = (np.clip(np.round(values / scale) + zero, grid.low, grid.high) - zero) * scale
    return float((counts * (rounded - values) ** 2).sum() / counts.sum())


def range_one_by_one(histogram, grid):
    """The same search as :func:`mse_range`, one candidate at a time."""
    low, high = histogram.low, histogram.high
    shares = np.linspace(1, 0.01, 100)

    def best(pairs):
        return int(np.argmin([error_of_one(histogram, *pair, grid) for pair in pairs]))

    if grid.is_symmetric:
        largest = max(-low, high)
        share = shares[best([(-s * largest, s * largest) for s in shares])]
        return -share * largest, share * largest
    share = shares[best([(s * low, s * high) for s in shares])]
    low, high = share * low, share * high
    for _ in range(2):
        high = shares[best([(low, s * histogram.high) for s in shares])] * histogram.high
        low = shares[best([(s * histogram.low, high) for s in shares])] * histogram.low
    return low, high


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.floats(-9, 9), st.floats(0, 20)), min_size=1, max_size=4
    ),
    st.sampled_from([1, 2, 4, 8, 12]),
    st.sampled_from(["affine", "symmetric", "unsigned symmetric", "relu"]),
    st.sampled_from([64, 2048]),
)
def test_all_ranges_at_once_give_what_one_after_the_other_gives(batches, bits, kind, bins):
    is_symmetric = "symmetric" in kind and bits > 1
    is_signed = is_symmetric and "unsigned" not in kind
    grid = Grid(bits, is_signed, is_symmetric, is_signed)
    data = [numbers(i, n, shift, size) for i, (n, shift, size) in enumerate(batches)]
    histogram = counted(*(x.relu() if kind == "relu" else x for x in data), bins=bins)
    assert mse_range(histogram, grid) == (
        range_one_by_one(histogram, grid) if histogram.high > histogram.low else (0, 0)
    )


@pytest.mark.parametrize("grid", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("case", ["spike", "two values", "long tail"])
def test_histograms_with_many_equal_errors_give_the_same_range_too(case, grid):
    histogram = Histogram()
    histogram.low, histogram.high = -1.0, 3.0
    if case == "spike":
        histogram.counts[700] = 1e9
        histogram.counts[-1] = 1
    elif case == "two values":
        histogram.counts[[0, -1]] = 5
    else:
        histogram.counts[:] = 1e6 / (1 + np.abs(histogram.centers)) ** 40
    assert mse_range(histogram, grid) == range_one_by_one(histogram, grid)


def test_the_error_on_a_histogram_is_that_on_the_data():
    x = numbers(0, 50000)
    for grid in (Grid(4, True, True, True), Grid(4, False, False)):
        (found,) = grid_errors(counted(x), np.array([-2.0]), np.array([2.0]), grid)
        assert found == pytest.approx(error_on(x.double().numpy(), -2, 2, grid), rel=1e-2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("grid", [UINT8, INT8], ids=["uint8", "int8"])
def test_the_range_of_least_divergence_keeps_the_bulk_and_drops_outliers(case, grid):
    x = CASES[case]()
    histogram = counted(x)
    low, high = entropy_range(histogram, grid)
    assert histogram.low <= low <= 0 <= high <= histogram.high
    inside = ((x >= low) & (x <= high)).double().mean()
    assert float(inside) > 0.99
    if case == "outliers":
        assert high < 20 and low > -20
    else:
        assert high > 2


@pytest.mark.parametrize("search", [mse_range, entropy_range])
def test_a_histogram_of_zeros_has_no_extent(search):
    assert search(counted(torch.zeros(5)), UINT8) == (0, 0)


@pytest.mark.parametrize("bits", [1, 2, 12, 16])
def test_divergence_with_few_or_many_levels_is_still_a_range(bits):
    histogram = counted(numbers(0, 5000))
    low, high = entropy_range(histogram, Grid(bits, False, False))
    assert histogram.low <= low < high <= histogram.high
