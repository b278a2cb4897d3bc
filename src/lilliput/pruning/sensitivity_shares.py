"""Compute from sensitivity curves how much each layer loses in a round: pure functions of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MOST_PER_ROUND = 0.95  # of the remaining weights of a layer


def is_within(metric: float, baseline: float, threshold: float, metric_mode: str) -> bool:
    """Whether a metric is at most ``threshold`` worse than the baseline; NaN never is.

    Examples
    --------
    >>> is_within(0.90, 0.92, 0.05, "maximize"), is_within(2.1, 2.0, 0.05, "minimize")
    (True, False)
    """
    return (
        metric >= baseline - threshold
        if metric_mode == "maximize"
        else metric <= baseline + threshold
    )


def passing_ratio(
    curve: Mapping[float, float], baseline: float, threshold: float, metric_mode: str = "maximize"
) -> float:
    """Return how much a layer can lose before its metric is more than ``threshold`` worse.

    That is the last sparsity before the first failing one, plus the linear interpolation
    towards the failing one up to the threshold; 0 if the smallest sparsity fails.

    Parameters
    ----------
    curve : mapping of float to float
        Metric by sparsity.
    baseline, threshold : float
        The metric without pruning, and how much worse it may get.
    metric_mode : str
        ``'maximize'`` if larger metrics are better, ``'minimize'`` if smaller ones are.

    Examples
    --------
    >>> passing_ratio({0.25: 0.75, 0.5: 0.75, 0.75: 0.25}, baseline=0.75, threshold=0.25)
    0.625
    >>> passing_ratio({0.25: 0.25, 0.5: 0.75}, baseline=0.75, threshold=0.25)
    0.0
    """
    limit = baseline - threshold if metric_mode == "maximize" else baseline + threshold
    passing: float | None = None
    for sparsity, metric in sorted(curve.items()):
        if is_within(metric, baseline, threshold, metric_mode):
            passing = sparsity
            continue
        if passing is None:
            return 0.0
        part = (curve[passing] - limit) / (curve[passing] - metric)
        return passing + (sparsity - passing) * part if math.isfinite(part) else passing
    return passing or 0.0


@dataclass(frozen=True)
class Stock:
    """How much can be removed from a layer.

    Parameters
    ----------
    size, pruned : int
        Its number of weights, and how many of them are removed.
    unit : int
        How many weights are removed together: 1, or those of a filter.
    cap : int
        The most that may be removed in total.
    ratio : float
        Share of the remaining weights that it can lose, used as its weight in the distribution.
    """

    size: int
    pruned: int
    unit: int
    cap: int
    ratio: float

    @property
    def left(self) -> int:
        """The remaining weights."""
        return self.size - self.pruned

    @property
    def limit(self) -> int:
        """The units that may be removed in one round."""
        if self.ratio <= 0:
            return 0
        most = min(math.floor(self.left * MOST_PER_ROUND), self.cap - self.pruned)
        return max(most, 0) // self.unit


def share_removals(stocks: Mapping[str, Stock], budget: int) -> dict[str, int]:
    """Split a budget of weights over layers, in proportion to ``ratio * left``.

    The part that a layer at its limit cannot take is shared by the others. Only whole units are
    assigned: within the limits, the sum is the budget if units are single weights, and less than one
    unit below it otherwise.

    Returns
    -------
    dict
        Units to remove, by layer.

    Examples
    --------
    >>> tough, soft = Stock(100, 0, 1, 100, 0.2), Stock(100, 0, 1, 100, 0.8)
    >>> share_removals({"tough": tough, "soft": soft}, 51)
    {'tough': 10, 'soft': 41}
    """
    units = dict.fromkeys(stocks, 0)
    open_ = [name for name, stock in stocks.items() if stock.limit > 0]
    left = min(budget, sum(stocks[name].limit * stocks[name].unit for name in open_))
    wanted: dict[str, float] = {}
    while open_:
        scale = left / sum(stocks[name].ratio * stocks[name].left for name in open_)
        wanted = {n: stocks[n].ratio * stocks[n].left * scale / stocks[n].unit for n in open_}
        full = [name for name in open_ if wanted[name] >= stocks[name].limit]
        if not full:
            break
        for name in full:
            units[name] = stocks[name].limit
            left -= stocks[name].limit * stocks[name].unit
        open_ = [name for name in open_ if name not in full]
    for name in open_:
        units[name] = math.floor(wanted[name])
        left -= units[name] * stocks[name].unit
    by_remainder = sorted(open_, key=lambda name: units[name] - wanted[name])
    while by_remainder:
        for name in by_remainder:
            if stocks[name].unit <= left and units[name] < stocks[name].limit:
                units[name] += 1
                left -= stocks[name].unit
        by_remainder = [
            n for n in by_remainder if stocks[n].unit <= left and units[n] < stocks[n].limit
        ]
    return units
