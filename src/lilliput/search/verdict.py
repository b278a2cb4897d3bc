"""Whether a written file keeps the budget, by the figures of its receipt."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lilliput.measure.latency import doubt_of
from lilliput.measure.receipt import Figures
from lilliput.search.task import Task


def missed(
    task: Task, costs: Mapping[str, float], before: Figures, after: Figures, drop: float | None
) -> tuple[str, ...]:
    """Return which budgets a file does not keep, in words; none if it keeps them all.

    Parameters
    ----------
    task : Task
        The search, with its limits.
    costs : mapping
        What was counted and measured while searching.
    before, after : Figures
        The original's file and the new one, timed in turns, with their metrics.
    drop : float, optional
        How much of the metric may be lost.
    """
    found = dict(costs)
    if after.bytes is not None:
        found["bytes"] = float(after.bytes)
    lines = []
    limit = task.limits.get("latency")
    if limit is not None and math.isfinite(limit.value):
        doubt = doubt_of(before, after)
        if doubt or not before.p50 or not after.p50:
            lines.append(f"the budget of latency is not shown to be met: {doubt or 'not timed'}")
        else:
            found["latency"] = _latency(task, before.p50, after.p50)
    lines += [
        f"the budget is not met: {task.limits[name]}; the file has {task.shown(name, value)}"
        for name, value, bound in task.compared(found)
        if value > bound
    ]
    lost = task.baseline - (task.baseline if after.metric is None else after.metric)
    if drop is not None and lost > drop:
        lines.append(f"the executed file loses {lost:.4g}, more than the drop of {drop:g}")
    return tuple(lines)


def _latency(task: Task, before: float, after: float) -> float:
    """Return a latency in the unit of its bound: that of the original when it was timed first."""
    if task.limits["latency"].is_share or task.clock is None:
        return after / before
    return after / task.clock.milliseconds
