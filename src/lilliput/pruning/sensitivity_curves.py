"""Draw sensitivity curves as one self-contained SVG: readable with three layers and with sixty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from itertools import pairwise

Curves = Mapping[str, Mapping[float, float]]  # layer -> sparsity -> metric
Point = tuple[float, float]

_WIDTH, _HEIGHT = 800, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 580, 24, 380  # of the plot; names stand to its right
_COLORS = ("#0072b2", "#d55e00", "#00865f", "#b8568c", "#a87b00", "#3492c9", "#7b4fb5", "#7a5c33")
_NAMED_OF_MANY = 6
_LINE_HEIGHT = 18


def draw_curves(curves: Curves, baseline: float, limit: float | None = None) -> str:
    """Return a drawing of sparsity against metric, a line per layer.

    Up to eight layers all have a colour and a name. Of more, the most sensitive six do, and the others
    are grey; a pointer over a line shows its name.

    Parameters
    ----------
    curves : mapping
        ``{layer: {sparsity: metric}}``; metrics that are no numbers end a line.
    baseline : float
        Metric of the unpruned model, where every line begins.
    limit : float, optional
        The metric that is still good enough, drawn as a dashed line.

    Examples
    --------
    >>> draw_curves({"fc": {0.5: 0.9, 0.9: 0.4}}, baseline=0.95)[:14]
    '<svg xmlns="ht'
    """
    lines = {name: _points(curve, baseline) for name, curve in curves.items()}
    metrics = [y for points in lines.values() for _, y in points]
    scale = _Scale([*metrics, *([] if limit is None else [limit])])
    ranked = sorted(lines, key=lambda name: _robustness(lines[name], limit))
    named = ranked[: len(_COLORS) if len(ranked) <= len(_COLORS) else _NAMED_OF_MANY]
    grey = [_line(name, lines[name], scale, "#b8bec6", 1) for name in ranked if name not in named]
    color_of = dict(zip(named, _COLORS, strict=False))
    colored = [_line(name, lines[name], scale, color_of[name], 2.2) for name in reversed(named)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_axes(scale),
        *grey,
        *colored,
        *_level("unpruned", baseline, scale, "#444b54", above=limit is None or baseline >= limit),
        *([] if limit is None else _level("limit", limit, scale, "#c0392b", baseline < limit)),
        *_names({name: lines[name][-1] for name in named}, color_of, scale, len(grey)),
        "</svg>",
    ]
    return "\n".join(parts)


class _Scale:
    """From values to places in the drawing."""

    def __init__(self, metrics: list[float]) -> None:
        low, high = min(metrics), max(metrics)
        self.step = _nice_step((high - low) or abs(high) or 1.0)
        self.low = math.floor(low / self.step) * self.step
        self.high = high + 0.08 * ((high - self.low) or self.step)  # room for a text

    def x(self, sparsity: float) -> float:
        return _LEFT + sparsity * (_RIGHT - _LEFT)

    def y(self, metric: float) -> float:
        return _BOTTOM - (metric - self.low) / (self.high - self.low) * (_BOTTOM - _TOP)

    def ticks(self) -> list[float]:
        count = math.floor((self.high - self.low) / self.step)
        return [self.low + i * self.step for i in range(count + 1)]


def _nice_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten that divides a span into about five.

    >>> _nice_step(0.9), _nice_step(37)
    (0.2, 10.0)
    """
    power: float = 10.0 ** math.floor(math.log10(span / 5))
    return min((1 * power, 2 * power, 5 * power, 10 * power), key=lambda s: abs(span / s - 5))


def _points(curve: Mapping[float, float], baseline: float) -> list[Point]:
    points = [(0.0, baseline)]
    for sparsity, metric in sorted(curve.items()):
        if not math.isfinite(metric):
            break
        points.append((sparsity, metric))
    return points


def _robustness(points: list[Point], limit: float | None) -> tuple[float, float]:
    """Return what sorts lines: where they cross the limit, and how little they leave the baseline."""
    baseline, crossing = points[0][1], math.inf
    for (start, before), (end, after) in pairwise(points):
        if limit is not None and (after - limit) * (baseline - limit) < 0:
            crossing = start + (end - start) * (before - limit) / (before - after)
            break
    return crossing, -_area(points)


def _area(points: list[Point]) -> float:
    """Return the area between a line, prolonged to the right edge, and its beginning's height.

    >>> round(_area([(0.0, 1.0), (0.5, 0.8)]), 3)  # a triangle, and a rectangle behind it
    0.15
    """
    baseline, area = points[0][1], 0.0
    for (start, before), (end, after) in pairwise([*points, (1.0, points[-1][1])]):
        area += (end - start) * (abs(before - baseline) + abs(after - baseline)) / 2
    return area


def _axes(scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks():
        y = scale.y(tick)
        parts.append(_segment((_LEFT, y), (_RIGHT, y), "#e6e9ed"))
        parts.append(_text((_LEFT - 8, y + 4), f"{tick:.6g}", "#444b54", "end"))
    for tenth in range(0, 11, 2):
        x = scale.x(tenth / 10)
        parts.append(_segment((x, _BOTTOM), (x, _BOTTOM + 5), "#444b54"))
        parts.append(_text((x, _BOTTOM + 20), f"{tenth * 10} %", "#444b54", "middle"))
    parts.append(_segment((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), "#444b54"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(_text((middle, _BOTTOM + 44), "share of one layer removed", "#1f2328", "middle"))
    y = (_TOP + _BOTTOM) / 2
    turned = f' transform="rotate(-90 18 {y:g})"'
    parts.append(_text((18, y), "metric of the model", "#1f2328", "middle", turned))
    return parts


def _level(name: str, metric: float, scale: _Scale, color: str, above: bool) -> list[str]:
    y = scale.y(metric)
    label = (_LEFT + 6, y - 6 if above else y + 15)
    return [
        _segment((_LEFT, y), (_RIGHT, y), color, ' stroke-dasharray="6 4"'),
        _text(label, f"{name} {metric:.4g}", color, extra=_HALO),
    ]


def _line(name: str, points: list[Point], scale: _Scale, color: str, width: float) -> str:
    places = " ".join(f"{scale.x(s):.1f},{scale.y(m):.1f}" for s, m in points)
    return (
        f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width:g}" '
        f'stroke-linejoin="round"><title>{escape(name)}</title></polyline>'
    )


def _names(
    ends: Mapping[str, Point], color_of: Mapping[str, str], scale: _Scale, others: int
) -> list[str]:
    """Write the names in the order in which their lines end, each tied to its line."""
    order = sorted(ends, key=lambda name: scale.y(ends[name][1]))
    wanted = [scale.y(ends[name][1]) for name in order]
    parts = []
    for name, y in zip(order, _spread(wanted), strict=True):
        sparsity, metric = ends[name]
        start = (scale.x(sparsity), scale.y(metric))
        color = color_of[name]
        parts.append(f'<circle cx="{start[0]:.1f}" cy="{start[1]:.1f}" r="3.5" fill="{color}"/>')
        parts.append(
            _segment(start, (_RIGHT + 16, y), color, ' stroke-opacity="0.5" stroke-dasharray="1 3"')
        )
        shown = name if len(name) <= 26 else f"…{name[-25:]}"
        parts.append(_text((_RIGHT + 20, y + 4), shown, color, extra=' font-weight="600"'))
    if others:
        place = (_RIGHT + 20, _BOTTOM + 44)
        parts.append(_text(place, f"grey: {others} less sensitive layers", "#6a737d"))
    return parts


def _spread(wanted: list[float]) -> list[float]:
    """Move sorted heights apart until no two texts overlap, within the plot.

    >>> _spread([100.0, 101.0, 300.0])
    [100.0, 118.0, 300.0]
    """
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + _LINE_HEIGHT) if placed else max(y, _TOP))
    bottom = float(_BOTTOM)
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], bottom)
        bottom = placed[i] - _LINE_HEIGHT
    return placed


_HALO = ' paint-order="stroke" stroke="#ffffff" stroke-width="3"'


def _segment(start: Point, end: Point, color: str, extra: str = "") -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{color}"{extra}/>'
    )


def _text(place: Point, text: str, color: str, anchor: str = "start", extra: str = "") -> str:
    return (
        f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" fill="{color}" text-anchor="{anchor}"{extra}>'
        f"{escape(text)}</text>"
    )
