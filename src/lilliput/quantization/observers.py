"""Observers: collect statistics of a tensor batch by batch, then return the range for a grid.

A custom observer is a small class::

    class Narrow(MinMax):
        def range(self, grid):
            low, high = super().range(grid)
            return 0.9 * low, 0.9 * high
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lilliput.errors import ConfigError, StateError, nearest
from lilliput.ops.histogram import Histogram, entropy_range, mse_range, percentile_range
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid

Reduce = Callable[[Any, str], Any]


class Observer:
    """Base class: statistics that can be saved, merged and turned into a range."""

    def observe(self, tensor: Tensor) -> None:
        """Add a batch."""
        raise NotImplementedError(f"{type(self).__name__} must override observe().")

    def range(self, grid: Grid) -> tuple[float, float]:
        """Return the smallest and the largest value that the grid should represent."""
        raise NotImplementedError(f"{type(self).__name__} must override range().")

    def is_finite(self) -> bool:
        """Whether all observed values are finite."""
        raise NotImplementedError(f"{type(self).__name__} must override is_finite().")

    def is_empty(self) -> bool:
        """Whether nothing was observed."""
        return False

    def merge(self, reduce: Reduce) -> None:
        """Merge the statistics of all processes with ``reduce(array, 'min' | 'max' | 'sum')``."""

    def state(self) -> dict[str, Any]:
        """Return the statistics as plain data."""
        return {key: _plain(value) for key, value in vars(self).items()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the result of :meth:`state`."""
        if state.keys() != vars(self).keys():
            raise StateError(
                f"a {type(self).__name__} was saved with {sorted(state)}, expected {sorted(vars(self))}."
            )
        for key, value in state.items():
            before = getattr(self, key)
            setattr(self, key, before.load(value) if isinstance(before, Histogram) else value)


class MinMax(Observer):
    """The whole observed range.

    Examples
    --------
    >>> import torch
    >>> observer = MinMax()
    >>> observer.observe(torch.tensor([-1.0, 3.0]))
    >>> observer.range(Grid(8, is_signed=False, is_symmetric=False))
    (-1.0, 3.0)
    """

    def __init__(self) -> None:
        self.low, self.high = float("inf"), float("-inf")

    def observe(self, tensor: Tensor) -> None:
        """Widen the range."""
        low, high = _ends(tensor)
        # NaN is neither smaller nor larger, but has to be noticed.
        self.low = low if not low >= self.low else self.low
        self.high = high if not high <= self.high else self.high

    def is_finite(self) -> bool:
        """Whether both ends are finite, or nothing was observed yet."""
        return self.is_empty() or bool(np.isfinite([self.low, self.high]).all())

    def is_empty(self) -> bool:
        """Whether nothing was observed yet."""
        return self.low > self.high

    def range(self, grid: Grid) -> tuple[float, float]:
        """Return the whole range."""
        return self.low, self.high

    def merge(self, reduce: Reduce) -> None:
        """Take the widest range over all processes."""
        self.low = float(reduce(np.array(self.low), "min"))
        self.high = float(reduce(np.array(self.high), "max"))


class MovingAverage(Observer):
    """The moving average of the range of each batch (Jacob et al., 2018).

    Parameters
    ----------
    momentum : float
        Weight of the previous average; the new batch has the rest.
    """

    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self.batches = 0
        self.low = self.high = 0.0

    def observe(self, tensor: Tensor) -> None:
        """Move the range towards that of a batch."""
        low, high = _ends(tensor)
        share = 1.0 if self.batches == 0 else 1 - self.momentum
        self.low += share * (low - self.low)
        self.high += share * (high - self.high)
        self.batches += 1

    def is_finite(self) -> bool:
        """Whether both ends are finite."""
        return bool(np.isfinite([self.low, self.high]).all())

    def is_empty(self) -> bool:
        """Whether no batch was observed."""
        return self.batches == 0

    def range(self, grid: Grid) -> tuple[float, float]:
        """Return the average range."""
        return self.low, self.high

    def merge(self, reduce: Reduce) -> None:
        """Average the ranges of all processes, weighted by their batches."""
        batches = int(reduce(np.array(float(self.batches)), "sum"))
        if batches:
            sums = [reduce(np.array(x * self.batches), "sum") for x in (self.low, self.high)]
            self.low, self.high = (float(x) / batches for x in sums)
        self.batches = batches


class HistogramObserver(Observer):
    """Base class of observers that trade clipping against resolution, using a histogram."""

    def __init__(self) -> None:
        self.histogram = Histogram()

    def observe(self, tensor: Tensor) -> None:
        """Count the values of a batch."""
        self.histogram.add(tensor)

    def is_finite(self) -> bool:
        """Whether both ends are finite."""
        return bool(np.isfinite([self.histogram.low, self.histogram.high]).all())

    def is_empty(self) -> bool:
        """Whether nothing was observed."""
        return not self.histogram.counts.any()

    def merge(self, reduce: Reduce) -> None:
        """Add up the histograms of all processes."""
        self.histogram.merge(reduce)


class Percentile(HistogramObserver):
    """The range without the outermost values.

    Parameters
    ----------
    percentile : float
        Share of the values to keep on each side, in percent.
    """

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        if not 50 < percentile <= 100:
            raise ConfigError(
                f"percentile: received {percentile}, expected more than 50, up to 100."
            )
        self.percentile = percentile

    def range(self, grid: Grid) -> tuple[float, float]:
        """Return the percentiles."""
        return percentile_range(self.histogram, self.percentile)


class MSE(HistogramObserver):
    """The range with the smallest mean squared error."""

    def range(self, grid: Grid) -> tuple[float, float]:
        """Search for the range on the histogram."""
        return mse_range(self.histogram, grid)


class Entropy(HistogramObserver):
    """The range whose quantized distribution is closest to the real one (Kullback-Leibler)."""

    def range(self, grid: Grid) -> tuple[float, float]:
        """Search for the range on the histogram."""
        return entropy_range(self.histogram, grid)


class Dynamic(Observer):
    """No fixed range: it is computed for every tensor, see :mod:`~lilliput.quantization.dynamic`."""

    def observe(self, tensor: Tensor) -> None:
        """Observe nothing."""

    def is_finite(self) -> bool:
        """Always True: nothing is observed."""
        return True


OBSERVERS: dict[str, type[Observer]] = {
    "minmax": MinMax,
    "ema": MovingAverage,
    "percentile": Percentile,
    "mse": MSE,
    "kl": Entropy,
    "entropy": Entropy,
    "dynamic": Dynamic,
}


def make_observer(chosen: str | type[Observer] | Observer) -> Observer:
    """Return a new observer by name or class; a number may follow: ``'percentile:99.9'``.

    Examples
    --------
    >>> type(make_observer("minmax")).__name__
    'MinMax'
    """
    if isinstance(chosen, str):
        name, _, number = chosen.lower().partition(":")
        if name in OBSERVERS and (not number or name in ("percentile", "ema")):
            try:
                return OBSERVERS[name](*([float(number)] if number else []))
            except ValueError:
                raise ConfigError(f"observer: {chosen!r} has no number after the colon.") from None
    if isinstance(chosen, type) and issubclass(chosen, Observer):
        return chosen()
    hint = nearest(chosen, OBSERVERS)
    raise ConfigError(f"observer: received {chosen!r}.{hint} Known: {', '.join(OBSERVERS)}.")


def _ends(tensor: Tensor) -> tuple[float, float]:
    low, high = namespace(tensor).range_of(tensor, None)
    return float(low), float(high)


def _plain(value: Any) -> Any:
    return value.state() if isinstance(value, Histogram) else value
