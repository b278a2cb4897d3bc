"""Sensitivity curves: the metric as one layer is pruned more and more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lilliput.charts.svg import (
    Point,
    Scale,
    drawing,
    line_through,
    nice_ticks,
    padded,
    path,
    text,
    tick_labels,
)

if TYPE_CHECKING:
    from lilliput.report.document import Curve

NAMED = 8


@dataclass(frozen=True)
class Frame:
    """A drawing of a metric by shares (0 to 1, to the right): its size, and the position of the plot."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    def scale(self, low: float, high: float) -> Scale:
        """Return the function that places points, for metrics in a range."""

        def place(point: Point) -> Point:
            share = (point[1] - low) / (high - low)
            x = self.left + point[0] * (self.right - self.left)
            return x, self.bottom - share * (self.bottom - self.top)

        return place

    def axes(self, ticks: Sequence[float], place: Scale) -> list[str]:
        """Return both axes, with a line across for each tick of the metric."""
        parts = []
        for tick, label in zip(ticks, tick_labels(ticks), strict=True):
            y = place((0, tick))[1]
            parts.append(self.across(y, "grid"))
            parts.append(text((self.left - 8, y + 4), label, anchor="end"))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            x = self.left + share * (self.right - self.left)
            anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
            parts.append(text((x, self.bottom + 20), f"{100 * share:.0f} %", anchor=anchor))
        parts.append(path(f"M{self.left} {self.bottom}H{self.right}", "axis"))
        middle = (self.left + self.right) / 2
        words = "share of one layer removed"
        parts.append(text((middle, self.bottom + 42), words, "name", "middle"))
        return parts

    def across(self, y: float, kind: str) -> str:
        """Return a line across the plot."""
        return path(f"M{self.left} {y:.1f}H{self.right}", kind)


_FRAME = Frame(600, 330, left=58, right=592, top=26, bottom=280)


def rank(curves: Sequence[Curve]) -> list[Curve]:
    """Return curves by how much they change, the most sensitive layer first."""
    return sorted(curves, key=lambda curve: -moved_area(_points(curve)))


def draw_lines(curves: Sequence[Curve], metric: str) -> str:
    """Return sparsity against metric, a line per layer: eight in colour, the others grey.

    Examples
    --------
    >>> from lilliput.report.document import Curve
    >>> draw_lines([Curve(layer="fc", baseline=0.9, points=[(0.5, 0.8)])], "accuracy")[:10]
    '<svg class'
    """
    ranked = rank(curves)
    values = [y for curve in curves for _, y in _points(curve)]
    low, high = padded(values)
    place = _FRAME.scale(low, high)
    parts = [*_FRAME.axes(nice_ticks(low, high), place), text((0, 12), metric, "name")]
    parts.append(f'<g class="other">{"".join(_line(c, place) for c in ranked[NAMED:])}</g>')
    for i, curve in reversed(list(enumerate(ranked[:NAMED]))):
        parts.append(f'<g class="named s{i}">{_line(curve, place)}</g>')
    baseline = next((c.baseline for c in curves if c.baseline is not None), None)
    if baseline is not None:
        parts.append(_FRAME.across(place((0, baseline))[1], "level"))
    most = ranked[0].layer
    words = f"{len(curves)} layers; the metric moves most when {most} is pruned."
    size = (_FRAME.width, _FRAME.height)
    return drawing("lines-1", size, f"{metric} against pruned share", words, parts)


def _points(curve: Curve) -> list[Point]:
    start = [] if curve.baseline is None else [(0.0, curve.baseline)]
    return [*start, *curve.points]


def moved_area(points: Sequence[Point]) -> float:
    """Return the area between a curve, extended to the right edge, and its start.

    >>> round(moved_area([(0.0, 1.0), (0.5, 0.8)]), 3)
    0.15
    """
    if not points:
        return 0.0
    start, area = points[0][1], 0.0
    for (a, before), (b, after) in pairwise([*points, (1.0, points[-1][1])]):
        area += (b - a) * (abs(before - start) + abs(after - start)) / 2
    return area


def _line(curve: Curve, place: Scale) -> str:
    points = [place(point) for point in _points(curve)]
    return path(line_through(points), "", curve.layer) if points else ""
