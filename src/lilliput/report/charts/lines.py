"""Sensitivity curves: how the metric falls as one layer loses more and more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lilliput.report.charts.svg import (
    Place,
    Scale,
    drawing,
    line_through,
    nice_ticks,
    padded,
    path,
    text,
    tick_labels,
)
from lilliput.report.document import Curve

_WIDTH, _HEIGHT = 600, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 592, 26, 280
NAMED = 8


def rank(curves: Sequence[Curve]) -> list[Curve]:
    """Return curves by how much they move, the most sensitive layer first."""
    return sorted(curves, key=lambda curve: -_area(_points(curve)))


def draw_lines(curves: Sequence[Curve], metric: str) -> str:
    """Return sparsity against metric, a line per layer: eight in colour, the others grey.

    Examples
    --------
    >>> draw_lines([Curve(layer="fc", baseline=0.9, points=[(0.5, 0.8)])], "accuracy")[:10]
    '<svg class'
    """
    ranked = rank(curves)
    values = [y for curve in curves for _, y in _points(curve)]
    low, high = padded(values)

    def place(point: Place) -> Place:
        share = (point[1] - low) / (high - low)
        return _LEFT + point[0] * (_RIGHT - _LEFT), _BOTTOM - share * (_BOTTOM - _TOP)

    parts = [*_axes(nice_ticks(low, high), place), text((0, 12), metric, "name")]
    parts.append(f'<g class="other">{"".join(_line(c, place) for c in ranked[NAMED:])}</g>')
    for i, curve in reversed(list(enumerate(ranked[:NAMED]))):
        parts.append(f'<g class="named s{i}">{_line(curve, place)}</g>')
    baseline = next((c.baseline for c in curves if c.baseline is not None), None)
    if baseline is not None:
        y = place((0, baseline))[1]
        parts.append(path(f"M{_LEFT} {y:.1f}H{_RIGHT}", "level"))
    most = ranked[0].layer
    words = f"{len(curves)} layers; the metric moves most when {most} is pruned."
    return drawing("lines-1", (_WIDTH, _HEIGHT), f"{metric} against pruned share", words, parts)


def _axes(ticks: list[float], place: Scale) -> list[str]:
    parts = []
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        y = place((0, tick))[1]
        parts.append(path(f"M{_LEFT} {y:.1f}H{_RIGHT}", "grid"))
        parts.append(text((_LEFT - 8, y + 4), label, anchor="end"))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + share * (_RIGHT - _LEFT)
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        parts.append(text((x, _BOTTOM + 20), f"{100 * share:.0f} %", anchor=anchor))
    parts.append(path(f"M{_LEFT} {_BOTTOM}H{_RIGHT}", "axis"))
    parts.append(
        text(((_LEFT + _RIGHT) / 2, _BOTTOM + 42), "share of one layer removed", "name", "middle")
    )
    return parts


def _points(curve: Curve) -> list[Place]:
    start = [] if curve.baseline is None else [(0.0, curve.baseline)]
    return [*start, *curve.points]


def _area(points: list[Place]) -> float:
    """Return the area between a curve, prolonged to the right edge, and where it begins.

    >>> round(_area([(0.0, 1.0), (0.5, 0.8)]), 3)
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
