"""Whether an exported file meets the budget, according to its receipt: met, not met, or not shown.

>>> Verdict(("the budget is not met: macs",), ("noisy",)).word, Verdict((), ("noisy",)).word, Verdict().word
('not met', 'not shown', 'met')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lilliput.measure.latency import doubt_of
from lilliput.measure.receipt import Figures
from lilliput.search.task import Task

MET, NOT_MET, NOT_SHOWN = "met", "not met", "not shown"


@dataclass(frozen=True)
class Verdict:
    """The budgets that a file does not meet, and those that could not be decided, as text."""

    missed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """``"met"``, ``"not met"``, or ``"not shown"`` if only a measurement was too noisy."""
        return NOT_MET if self.missed else NOT_SHOWN if self.unknown else MET

    @property
    def notes(self) -> tuple[str, ...]:
        """Both, for the receipt."""
        return self.missed + self.unknown


def judge(
    task: Task, costs: Mapping[str, float], before: Figures, after: Figures, drop: float | None
) -> Verdict:
    """Return whether a file meets its budgets.

    Parameters
    ----------
    task : Task
        The search, with its limits.
    costs : mapping
        Costs counted and measured in the search.
    before, after : Figures
        The original's file and the new one, timed alternately, with their metrics.
    drop : float, optional
        Largest acceptable drop of the metric.
    """
    found = dict(costs)
    if after.bytes is not None:
        found["bytes"] = float(after.bytes)
    unknown = []
    limit = task.limits.get("latency")
    if limit is not None and math.isfinite(limit.value):
        doubt = doubt_of(before, after)
        if doubt or not before.p50 or not after.p50:
            unknown.append(f"the latency budget is not shown to be met: {doubt or 'not timed'}")
        else:
            found["latency"] = _latency(task, before.p50, after.p50)
    lines = [
        f"the budget is not met: {task.limits[name]}; the file has {task.shown(name, value)}"
        for name, value, bound in task.compared(found)
        if value > bound
    ]
    lost = task.baseline - (task.baseline if after.metric is None else after.metric)
    if drop is not None and lost > drop:
        lines.append(f"the executed file loses {lost:.4g}, more than the drop of {drop:g}")
    return Verdict(tuple(lines), tuple(unknown))


def _latency(task: Task, before: float, after: float) -> float:
    """Return a latency relative to the same reference as its bound: the original when first timed."""
    if task.limits["latency"].is_share or task.clock is None:
        return after / before
    return after / task.clock.milliseconds
