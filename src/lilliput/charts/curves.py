"""Sensitivity curves as a file: one self-contained SVG, readable with three layers and with sixty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from lilliput.charts.colors import SERIES_LIGHT
from lilliput.charts.lines import Frame, moved_area
from lilliput.charts.svg import (
    Point,
    Scale,
    as_file,
    drawing,
    line_through,
    nice_ticks,
    padded,
    path,
    shortened,
    text,
)

Curves = Mapping[str, Mapping[float, float]]  # layer -> sparsity -> metric

_FRAME = Frame(800, 440, left=70, right=580, top=24, bottom=380)  # names are written to the right
_NAMED_OF_MANY = 6
_LINE_HEIGHT = 18
_STYLE = (
    ".name{fill:var(--ink)}.grid,.axis,.other,.named,.tie,.level{fill:none}.grid{stroke:var(--line)}"
    ".axis,.other{stroke:var(--axis)}.level{stroke:var(--soft);stroke-dasharray:6 4}"
    ".limit{stroke:var(--warn)}.named{stroke-width:2.2;stroke-linejoin:round}"
    ".tie{stroke-opacity:.5;stroke-dasharray:1 3}.named,.tie{stroke:currentColor}"
    ".layer{fill:currentColor;font-weight:600}.over{paint-order:stroke;stroke:var(--card);stroke-width:3}"
    + "".join(f".s{i}{{color:var(--s{i})}}" for i in range(len(SERIES_LIGHT)))
)


def draw_curves(curves: Curves, baseline: float, limit: float | None = None) -> str:
    """Return a drawing of sparsity against metric, a line per layer.

    Up to eight layers all have a colour and a name. With more, the most sensitive six do, and the others
    are grey; hovering over a line shows its name.

    Parameters
    ----------
    curves : mapping
        ``{layer: {sparsity: metric}}``; a NaN metric ends its line.
    baseline : float
        Metric of the unpruned model, where every line starts.
    limit : float, optional
        The metric that is still good enough, drawn as a dashed line.

    Examples
    --------
    >>> draw_curves({"fc": {0.5: 0.9, 0.9: 0.4}}, baseline=0.95)[:10]
    '<svg class'
    """
    lines = {name: _points(curve, baseline) for name, curve in curves.items()}
    metrics = [y for points in lines.values() for _, y in points]
    low, high = padded([*metrics, *([] if limit is None else [limit])], share=0.08)
    place = _FRAME.scale(low, high)
    ranked = sorted(lines, key=lambda name: _robustness(lines[name], limit))
    most = len(SERIES_LIGHT)
    named = ranked[: most if len(ranked) <= most else _NAMED_OF_MANY]
    parts = _FRAME.axes(nice_ticks(low, high), place)
    parts.append(text((8, 14), "metric of the model", "name"))
    parts += [_line(name, lines[name], place, "other") for name in ranked if name not in named]
    for i, name in reversed(list(enumerate(named))):
        parts.append(_line(name, lines[name], place, f"named s{i}"))
    parts += _level("unpruned", baseline, place, limit is None or baseline >= limit)
    parts += [] if limit is None else _level("limit", limit, place, baseline < limit)
    parts += _names({name: place(lines[name][-1]) for name in named})
    if len(ranked) > len(named):
        others = f"grey: {len(ranked) - len(named)} less sensitive layers"
        parts.append(text((_FRAME.right + 20, _FRAME.bottom + 42), others))
    size = (_FRAME.width, _FRAME.height)
    words = f"{len(lines)} layers; the most sensitive is {ranked[0]}." if ranked else "No layers."
    svg = drawing("curves-1", size, "Metric against the share of a layer removed", words, parts)
    return as_file(svg, size, _STYLE)


def _points(curve: Mapping[float, float], baseline: float) -> list[Point]:
    points = [(0.0, baseline)]
    for sparsity, metric in sorted(curve.items()):
        if not math.isfinite(metric):
            break
        points.append((sparsity, metric))
    return points


def _robustness(points: Sequence[Point], limit: float | None) -> tuple[float, float]:
    """Return the sort key of a line: where it crosses the limit, then how little it leaves the baseline."""
    baseline, crossing = points[0][1], math.inf
    for (start, before), (end, after) in pairwise(points):
        if limit is not None and (after - limit) * (baseline - limit) < 0:
            crossing = start + (end - start) * (before - limit) / (before - after)
            break
    return crossing, -moved_area(points)


def _line(name: str, points: Sequence[Point], place: Scale, kind: str) -> str:
    return path(line_through([place(point) for point in points]), kind, name)


def _level(name: str, metric: float, place: Scale, above: bool) -> list[str]:
    y = place((0, metric))[1]
    label = (_FRAME.left + 6, y - 6 if above else y + 15)
    return [
        _FRAME.across(y, f"level {name}"),
        text(label, f"{name} {metric:.4g}", "over"),
    ]


def _names(ends: Mapping[str, Point]) -> list[str]:
    """Write the names in the order in which their lines end, each tied to its line."""
    colors = {name: i for i, name in enumerate(ends)}
    order = sorted(ends, key=lambda name: ends[name][1])
    parts = []
    for name, y in zip(order, _spread([ends[name][1] for name in order]), strict=True):
        color, right = f"s{colors[name]}", _FRAME.right
        parts.append(path(line_through([ends[name], (right + 16, y)]), f"tie {color}"))
        parts.append(text((right + 20, y + 4), shortened(name, 26), f"layer {color}"))
    return parts


def _spread(wanted: Sequence[float]) -> list[float]:
    """Move sorted heights apart until no two texts overlap, within the plot.

    >>> _spread([100.0, 101.0, 300.0])
    [100.0, 118.0, 300.0]
    """
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + _LINE_HEIGHT) if placed else max(y, _FRAME.top))
    bottom = float(_FRAME.bottom)
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], bottom)
        bottom = placed[i] - _LINE_HEIGHT
    return placed
