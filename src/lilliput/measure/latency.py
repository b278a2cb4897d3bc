"""Decide whether two latencies can be compared: same runtime, and steady readings.

>>> steady = {"runtime": "ONNX Runtime, 1 thread", "p95": 2.2, "runs": 50}
>>> from lilliput.measure.receipt import Figures
>>> before = Figures("before", p50=2.0, readings=(2.0, 2.1), **steady)
>>> doubt_of(before, Figures("after", p50=1.0, readings=(1.0, 1.0), **steady))
''
>>> print(doubt_of(before, Figures("after", p50=1.0, readings=(0.8, 1.9), **steady)))
noisy: two readings of after gave 0.8 and 1.9 ms
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lilliput.measure.receipt import Figures

_UNSTEADY = 1.5  # largest ratio of two readings of one model
_UNSTEADY_RATIO = 1.25  # the same for a ratio, which is less affected by load
SAME_RATIO = 1.05  # closer ratios are called the same, given the accuracy of timings
_SPREAD = 3.0  # p95 over p50
_FEWEST = 4  # calls that make two readings


def readings_of(times: Sequence[float]) -> tuple[float, ...]:
    """Return the medians of the first and the second half of all timed calls.

    Examples
    --------
    >>> readings_of([1.0, 1.0, 1.0, 3.0, 3.0, 3.0]), readings_of([1.0])
    ((1.0, 3.0), ())
    """
    if len(times) < _FEWEST:
        return ()
    half = len(times) // 2
    return statistics.median(times[:half]), statistics.median(times[half:])


def doubt_of(one: Figures, two: Figures) -> str:
    """Return why the ratio of two latencies does not reflect the models, or an empty string.

    Parameters
    ----------
    one, two : Figures
        Both sides of a receipt.
    """
    if not one.p50 or not two.p50:
        return ""
    return other_runtime(one, two) or noise(one, two)


def other_runtime(one: Figures, two: Figures) -> str:
    """Return which runtimes, threads or batches were used, if they differ."""
    first, second = _conditions(one.runtime), _conditions(two.runtime)
    known = [(a, b) for a, b in zip(first, second, strict=False) if a and b]
    if all(a == b for a, b in known):
        return ""
    if first[0] != second[0]:
        return f"{second[0]} now, {first[0]} before"
    return f"{', '.join(second[1:])} now, {', '.join(first[1:])} before"


def noise(one: Figures, two: Figures) -> str:
    """Return two readings that disagree, if any."""
    for side in (one, two):
        if _far_apart(side.readings, _UNSTEADY):
            return f"noisy: two readings of {side.name} gave {_pair(side.readings)} ms"
    ratios = [a / b for a, b in zip(one.readings, two.readings, strict=False) if a and b]
    if _far_apart(ratios, min(_UNSTEADY_RATIO, max(SAME_RATIO, _difference(one, two)))):
        return f"noisy: two readings of the ratio gave {_pair(ratios)}"
    for side in (one, two):
        if side.p50 and side.p95 and side.p95 > _SPREAD * side.p50:
            return (
                f"noisy: {side.name} took {side.p50:.3g} ms in the median, {side.p95:.3g} ms at p95"
            )
    return ""


def _conditions(runtime: str) -> list[str]:
    """Return what a latency depends on: the runtime without its version, the threads and the batch."""
    product, *others = runtime.split(", ")
    return [re.split(r" \d", product)[0], *others]


def _far_apart(values: Sequence[float], limit: float) -> bool:
    return len(values) > 1 and max(values) > limit * min(values)


def _difference(one: Figures, two: Figures) -> float:
    """Return the factor by which the two differ; two readings of the ratio must agree better."""
    first, second = one.p50 or 1.0, two.p50 or 1.0
    return max(first / second, second / first)


def _pair(values: Sequence[float]) -> str:
    shown = values if len(values) == 2 else (min(values), max(values))
    return " and ".join(f"{value:.3g}" for value in shown)
