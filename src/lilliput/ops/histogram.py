"""Histograms of activations, and the range of them that a grid should cover."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 2048
_CANDIDATES = 100
# Number of counted entries of one tensor; larger tensors are sampled.
_SAMPLED = 1 << 19


class Histogram:
    """Counts in equal bins; the range grows with the data.

    Examples
    --------
    >>> import torch
    >>> histogram = Histogram(bins=4)
    >>> histogram.add(torch.tensor([0.0, 1.0, 2.0, 4.0]))
    >>> histogram.counts.tolist(), histogram.low, histogram.high
    ([1.0, 1.0, 1.0, 1.0], 0.0, 4.0)
    """

    def __init__(self, bins: int = BINS) -> None:
        self.low = self.high = 0.0
        self.counts: NDArray[np.float64] = np.zeros(bins)

    def add(self, tensor: Tensor) -> None:
        """Count the entries of a tensor, sampled if it is large; the range is that of all entries."""
        xp = namespace(tensor)
        low, high = (float(x) for x in xp.range_of(tensor, None))
        if not (np.isfinite(low) and np.isfinite(high)):
            self.low, self.high = low, high  # the observer will notice
            return
        self.widen(min(low, self.low), max(high, self.high))
        if self.high > self.low:
            size = xp.size(tensor)
            found = xp.histogram(tensor, self.counts.size, self.low, self.high, _stride(size))
            self.counts += found * (size / max(found.sum(), 1))
        else:  # only zeros so far: they are in the first bin, at the start of the range
            self.counts[0] += xp.size(tensor)

    def widen(self, low: float, high: float) -> None:
        """Extend the range to ``low`` and ``high``; counts are moved to the nearest bins."""
        if low >= self.low and high <= self.high:
            return
        if self.high > self.low:  # with a margin, so that this is not needed in every batch
            low = min(low, self.low) if low >= self.low else low * 1.25
            high = max(high, self.high) if high <= self.high else high * 1.25
        self._move(low, high)

    def _move(self, low: float, high: float) -> None:
        """Move the counts to the nearest bins of another range."""
        if (low, high) == (self.low, self.high):
            return
        before, centers = self.counts, self.centers
        self.low, self.high = low, high
        self.counts = np.zeros_like(before)
        width = (high - low) / before.size
        places = np.clip(((centers - low) / width).astype(int), 0, before.size - 1)
        np.add.at(self.counts, places, before)

    def merge(self, reduce: Callable[[Any, str], Any]) -> None:
        """Add up the counts of all processes."""
        self._move(
            float(reduce(np.array(self.low), "min")), float(reduce(np.array(self.high), "max"))
        )
        self.counts = np.asarray(reduce(self.counts, "sum"))

    @property
    def centers(self) -> NDArray[np.float64]:
        """The middle of each bin."""
        width = (self.high - self.low) / self.counts.size
        return self.low + width * (np.arange(self.counts.size, dtype=np.float64) + 0.5)

    def state(self) -> dict[str, Any]:
        """Return the histogram as plain data."""
        return {"low": self.low, "high": self.high, "counts": self.counts.tolist()}

    def load(self, state: dict[str, Any]) -> Histogram:
        """Return a histogram from plain data."""
        loaded = Histogram(len(state["counts"]))
        loaded.low, loaded.high = float(state["low"]), float(state["high"])
        loaded.counts = np.array(state["counts"], dtype=np.float64)
        return loaded


def percentile_range(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Return the range that excludes the same small share of values on each side."""
    total = histogram.counts.sum()
    share = (1 - percentile / 100) * total
    cumulated = np.cumsum(histogram.counts)
    first = int(np.searchsorted(cumulated, share, side="right"))
    last = int(np.searchsorted(cumulated, total - share, side="left"))
    width = (histogram.high - histogram.low) / histogram.counts.size
    low = histogram.low + first * width
    high = histogram.low + (min(last, histogram.counts.size - 1) + 1) * width
    return min(low, 0.0), max(high, 0.0)


def mse_range(histogram: Histogram, grid: Grid) -> tuple[float, float]:
    """Return the range whose grid has the smallest mean squared error on a histogram."""
    low, high = histogram.low, histogram.high
    if high <= low:
        return low, high
    shares = np.linspace(1, 1 / _CANDIDATES, _CANDIDATES)
    if grid.is_symmetric:
        ends = shares * max(-low, high)
        best = float(ends[_best(histogram, -ends, ends, grid)])
        return -best, best
    # Both ends together first: with outliers on both sides, moving one end alone has no gain.
    lows, highs = shares * low, shares * high
    first = _best(histogram, lows, highs, grid)
    low, high = float(lows[first]), float(highs[first])
    if low == 0 or high == 0:
        return low, high
    for _ in range(2):  # one end after the other, then both once more
        high = float(highs[_best(histogram, np.full_like(highs, low), highs, grid)])
        low = float(lows[_best(histogram, lows, np.full_like(lows, high), grid)])
    return low, high


def grid_errors(
    histogram: Histogram, lows: NDArray[np.float64], highs: NDArray[np.float64], grid: Grid
) -> NDArray[np.float64]:
    """Return the mean squared errors of rounding a histogram's values to a grid over several ranges."""
    values, counts = histogram.centers, histogram.counts
    scales, zeros = (x[:, None] for x in _fit(lows, highs, grid))
    steps = np.where(scales > 0, scales, 1.0)
    rounded = (np.clip(np.round(values / steps) + zeros, grid.low, grid.high) - zeros) * steps
    rounded = np.where(scales > 0, rounded, 0.0)
    errors: NDArray[np.float64] = (counts * (rounded - values) ** 2).sum(1) / counts.sum()
    return errors


def _fit(
    lows: NDArray[np.float64], highs: NDArray[np.float64], grid: Grid
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scale and the zero point of a grid over each of several ranges."""
    if grid.is_symmetric:
        zero = grid.fixed_zero_point
        scales = np.maximum(highs / (grid.high - zero), -lows / max(zero - grid.low, 1))
        return scales, np.full_like(scales, zero)
    scales = (highs - lows) / (grid.high - grid.low)
    steps = np.where(scales > 0, scales, 1.0)
    return scales, grid.low + np.where(scales > 0, np.rint(-lows / steps), 0.0)


def _best(
    histogram: Histogram, lows: NDArray[np.float64], highs: NDArray[np.float64], grid: Grid
) -> int:
    """Return which of several ranges has the smallest error, the first of equal ones.

    For grids with few levels, errors are first estimated by sums over whole cells, which reads some hundred
    numbers per range instead of every bin; only ranges close to the best are computed in full.
    """
    near = np.arange(lows.size)
    if 4 * (grid.high - grid.low) <= histogram.counts.size:
        estimates, accuracy = _estimate_errors(histogram, lows, highs, grid)
        near = np.flatnonzero(estimates <= estimates.min() + accuracy)
    return int(near[np.argmin(grid_errors(histogram, lows[near], highs[near], grid))])


def _estimate_errors(
    histogram: Histogram, lows: NDArray[np.float64], highs: NDArray[np.float64], grid: Grid
) -> tuple[NDArray[np.float64], float]:
    """Return the squared errors of several ranges up to floating-point rounding, and a bound of that.

    With ``q`` the largest number of a grid and ``e`` the edges between its cells, the sum of
    ``c * (v - round(v))**2`` is that of ``c * (v - q)**2`` plus ``2 * scale`` times the sum over all edges
    of ``c * (v - e)`` below the edge, so that two running sums of the histogram suffice.
    """
    values, counts = histogram.centers, histogram.counts
    scales, zeros = (x[:, None] for x in _fit(lows, highs, grid))
    edges = (np.arange(grid.low, grid.high) + 0.5 - zeros) * scales
    width = (histogram.high - histogram.low) / counts.size
    below = np.clip(np.ceil((edges - histogram.low) / width - 0.5), 0, counts.size).astype(np.intp)
    numbers, sums = (np.concatenate([[0.0], np.cumsum(x)]) for x in (counts, counts * values))
    tops = (grid.high - zeros) * scales
    squares = (counts * values**2).sum() - 2 * tops * sums[-1] + tops**2 * numbers[-1]
    errors = squares[:, 0] + 2 * scales[:, 0] * (sums[below] - edges * numbers[below]).sum(1)
    return errors, 1e-11 * float(numbers[-1]) * (histogram.high - histogram.low) ** 2


def entropy_range(histogram: Histogram, grid: Grid) -> tuple[float, float]:
    """Return the range for which the quantized distribution is closest to the real one.

    Candidates are clipped at a magnitude; the Kullback-Leibler divergence is between the magnitudes,
    with everything clipped in the last bin, and the same after merging them to the grid's levels.
    """
    largest = max(-histogram.low, histogram.high)
    if largest <= 0:
        return histogram.low, histogram.high
    two_sided = histogram.low < 0 < histogram.high
    # The number of levels of the longer side: half of them if the grid is symmetric.
    share = 0.5 if grid.is_symmetric else largest / (histogram.high - histogram.low)
    levels = max(int((grid.high - grid.low + 1) * share), 2)
    magnitudes = np.abs(histogram.centers)
    bins = histogram.counts.size // (2 if two_sided else 1)
    places = np.minimum((magnitudes / largest * bins).astype(int), bins - 1)
    counts = np.bincount(places, weights=histogram.counts, minlength=bins).astype(np.float64)
    counts[0] = counts[1] if bins > 1 else counts[0]  # exact zeros cost nothing on any grid
    candidates = np.unique(np.linspace(min(levels, bins), bins, _CANDIDATES).astype(int))
    costs = [_divergence(counts, int(cut), levels) for cut in candidates]
    limit = float(candidates[int(np.argmin(costs))] / bins * largest)
    return max(histogram.low, -limit), min(histogram.high, limit)


def _divergence(counts: NDArray[np.float64], cut: int, levels: int) -> float:
    real = counts[:cut].copy()
    inside = real.copy()
    real[-1] += counts[cut:].sum()
    level_of = np.minimum(np.arange(cut) * levels // cut, levels - 1)
    sums = np.bincount(level_of, weights=inside, minlength=levels)
    filled = np.bincount(level_of, weights=(real > 0).astype(float), minlength=levels)
    merged = np.where(real > 0, sums[level_of] / np.maximum(filled[level_of], 1), 0.0)
    if merged.sum() == 0 or real.sum() == 0:
        return float("inf")
    real, merged = real / real.sum(), merged / merged.sum()
    used = real > 0
    return float((real[used] * np.log(real[used] / np.maximum(merged[used], 1e-12))).sum())


def _stride(size: int) -> int:
    """Return how many entries of a large tensor one counted entry represents.

    It has no factor in common with the size, and so none with any axis: all channels and columns are
    sampled.

    Examples
    --------
    >>> _stride(1000), _stride(32 * 2048 * 7 * 7)
    (1, 9)
    """
    every = max(size // _SAMPLED, 1)
    while gcd(every, size) > 1:
        every += 1
    return every
