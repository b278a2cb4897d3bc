"""Plot the cost and the metric of all models that were tried, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lilliput.charts.svg import (
    Point,
    Scale,
    drawing,
    hovering,
    nice_ticks,
    padded,
    path,
    short,
    text,
    tick_label,
    tick_labels,
)

if TYPE_CHECKING:
    from lilliput.report.document import TriedPoint

_WIDTH, _HEIGHT = 600, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 586, 26, 288
AXES = {"bytes": "bytes on disk", "p50": "milliseconds, median", "macs": "MACs per example"}
_FEW = 10
Spot = tuple[float, float, str]


def costs_of(points: Sequence[TriedPoint]) -> list[str]:
    """Return the costs that at least two points have, together with a metric."""
    known = [p for p in points if p.metric is not None]
    return [key for key in AXES if sum(getattr(p, key) is not None for p in known) > 1]


def spots_of(points: Sequence[TriedPoint], cost: str) -> list[Spot]:
    """Return cost, metric and name of the points that have both."""
    return [
        (float(getattr(p, cost)), p.metric, p.name)
        for p in points
        if p.metric is not None and getattr(p, cost) is not None
    ]


def front_of(spots: Sequence[Spot]) -> list[Spot]:
    """Return the points that no other one beats: none is both cheaper and better.

    Examples
    --------
    >>> front_of([(1, 0.8, "a"), (2, 0.7, "b"), (3, 0.9, "c")])
    [(1, 0.8, 'a'), (3, 0.9, 'c')]
    """
    front: list[Spot] = []
    for spot in sorted(spots, key=lambda s: (s[0], -s[1])):
        if not front or spot[1] > front[-1][1]:
            front.append(spot)
    return front


def named_of(spots: Sequence[Spot]) -> list[tuple[Spot, bool]]:
    """Return the points that have a number, by cost, and whether they are on the front.

    With few points all have one, with many only the front.
    """
    front = front_of(spots)
    shown = sorted(spots) if len(spots) <= _FEW else front
    return [(spot, spot in front) for spot in shown]


def draw_scatter(points: Sequence[TriedPoint], cost: str, metric: str) -> str:
    """Return a drawing of one cost against the metric; higher and further left is better.

    Examples
    --------
    >>> from lilliput.report.document import TriedPoint
    >>> tried = [TriedPoint(name="a", bytes=10, metric=0.8), TriedPoint(name="b", bytes=5, metric=0.7)]
    >>> draw_scatter(tried, "bytes", "accuracy")[:10]
    '<svg class'
    """
    spots = spots_of(points, cost)
    right = max(s[0] for s in spots) * 1.04 or 1.0
    low, high = padded([s[1] for s in spots], 0.08)

    def place(point: Point) -> Point:
        across, up = point[0] / right, (point[1] - low) / (high - low)
        return _LEFT + across * (_RIGHT - _LEFT), _BOTTOM - up * (_BOTTOM - _TOP)

    front = front_of(spots)
    parts = _axes(nice_ticks(0, right, 4), nice_ticks(low, high, 4), AXES[cost], place)
    parts += [text((0, 12), metric, "name"), _staircase([place(s[:2]) for s in front])]
    for spot in spots:
        x, y = place(spot[:2])
        kind, radius = ("best", 5.5) if spot in front else ("spot", 4)
        hover = f"{spot[2]}: {tick_label(spot[0])} {AXES[cost]}, {metric} {spot[1]:g}"
        parts.append(
            f'<circle class="{kind}" cx="{short(x)}" cy="{short(y)}" r="{radius}">{hovering(hover)}</circle>'
        )
    for number, (spot, is_best) in enumerate(named_of(spots), 1):
        x, y = place(spot[:2])
        parts.append(text((x - 8, y - 7), str(number), "mark" if is_best else "mark beaten", "end"))
    words = f"{len(spots)} models; not beaten: {', '.join(spot[2] for spot in front)}."
    title = f"{metric} against {AXES[cost]}"
    return drawing(f"scatter-{cost}", (_WIDTH, _HEIGHT), title, words, parts)


def _axes(xs: list[float], ys: list[float], name: str, place: Scale) -> list[str]:
    parts = []
    for tick, label in zip(ys, tick_labels(ys), strict=True):
        y = place((0, tick))[1]
        parts.append(path(f"M{_LEFT} {short(y)}H{_RIGHT}", "grid"))
        parts.append(text((_LEFT - 8, y + 4), label, anchor="end"))
    for tick, label in zip(xs, tick_labels(xs), strict=True):
        x = place((tick, ys[0]))[0]
        anchor = "end" if x > _RIGHT - 24 else "middle"
        parts.append(text((x, _BOTTOM + 20), label, anchor=anchor))
    parts.append(path(f"M{_LEFT} {_BOTTOM}H{_RIGHT}", "axis"))
    parts.append(text(((_LEFT + _RIGHT) / 2, _BOTTOM + 42), name, "name", "middle"))
    return parts


def _staircase(places: list[Point]) -> str:
    """Draw the front: from each point to the right, then up to the next."""
    (x, y), *others = places
    d = f"M{short(x)} {short(y)}" + "".join(f"H{short(a)}V{short(b)}" for a, b in others)
    return path(f"{d}H{_RIGHT}", "front")
