"""Two overlaid histograms: the distribution of values before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lilliput.charts.svg import drawing, path, short, text, tick_label

if TYPE_CHECKING:
    from lilliput.report.document import HistogramPair

_WIDTH, _HEIGHT, _BASE = 260, 104, 84


def draw_pair(pair: HistogramPair, key: str) -> str:
    """Return a small drawing: the original as an area, the result as a line.

    Examples
    --------
    >>> from lilliput.report.document import HistogramPair
    >>> pair = HistogramPair(layer="fc", target="weight", low=-1, high=1, before=[500, 500])
    >>> draw_pair(pair, "hist-1")[:10]
    '<svg class'
    """
    top = ceiling(pair)
    parts = []
    if pair.before is not None:
        parts.append(path(f"{_outline(pair.before, top)}V{_BASE}H0z", "before"))
    if pair.after is not None:
        parts.append(path(f"{_outline(pair.after, top)}V{_BASE}H0z", "after"))
    parts.append(path(f"M0 {_BASE}H{_WIDTH}", "axis"))
    parts += [
        text((0, _BASE + 15), tick_label(pair.low)),
        text((_WIDTH, _BASE + 15), tick_label(pair.high), anchor="end"),
    ]
    if pair.low < 0 < pair.high:
        x = -pair.low / (pair.high - pair.low) * _WIDTH
        parts.append(path(f"M{short(x)} {_BASE}v4", "axis"))
        if _WIDTH * 0.2 < x < _WIDTH * 0.8:
            parts.append(text((x, _BASE + 15), "0", anchor="middle"))
    sides = [x for x, held in (("before", pair.before), ("after", pair.after)) if held is not None]
    words = f"{pair.target} of {pair.layer}, {' and '.join(sides)}, {pair.low:g} to {pair.high:g}."
    return drawing(key, (_WIDTH, _HEIGHT), f"Histogram of {pair.layer}", words, parts)


def ceiling(pair: HistogramPair) -> float:
    """Return the share at the top of the axis: a single tall bin may be clipped.

    Examples
    --------
    >>> from lilliput.report.document import HistogramPair
    >>> ceiling(HistogramPair(layer="", target="input", low=0, high=1, before=[900, 50, 40, 10]))
    100.0
    """
    most = [sorted(held, reverse=True) for held in (pair.before, pair.after) if held]
    tall = max((bins[0] for bins in most), default=1)
    second = max((bins[1] if len(bins) > 1 else bins[0] for bins in most), default=1)
    return float(max(min(tall, 2 * second), 1))


def _outline(shares: Sequence[int], top: float) -> str:
    """Return steps from left to right; bins of the same height are one step."""
    width, d, level = _WIDTH / len(shares), f"M0 {_BASE}", None
    for i, share in enumerate(shares):
        height = round(min(share / top, 1) * (_BASE - 4))
        if height != level:
            d += (f"H{short(i * width)}" if i else "") + f"V{_BASE - height}"
            level = height
    return f"{d}H{_WIDTH}"
