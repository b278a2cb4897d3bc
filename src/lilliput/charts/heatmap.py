"""Heat maps: one column per layer, from the model's input to its output, one strip per figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lilliput.charts.svg import drawing, path, short

if TYPE_CHECKING:
    from lilliput.report.document import LayerRow

_WIDTH, _HEIGHT = 960, 28
_STEPS = 6
QUIET, LOUD = 45.0, 15.0  # dB: negligible noise, and enough to be harmful


@dataclass(frozen=True)
class Strip:
    """One figure of all layers, as shares from 0 to 1 of a colour ramp."""

    label: str
    ramp: str  # 'k' for kept weights, 'n' for noise
    shares: Sequence[float | None]


def find_strips(layers: Sequence[LayerRow]) -> list[Strip]:
    """Return the available strips: kept weights, and the noise of each quantized tensor."""
    strips = [Strip("weights kept", "k", [row.kept for row in layers])]
    for target in ("weight", "input", "output"):
        noise = [_noise(row.sqnr.get(target)) for row in layers]
        strips.append(Strip(f"rounding noise, {target}", "n", noise))
    return [strip for strip in strips if any(x is not None for x in strip.shares)]


def draw_strip(strip: Strip, layers: Sequence[LayerRow], number: int) -> str:
    """Return one strip, as wide as the page allows, with a fixed height.

    Examples
    --------
    >>> from lilliput.report.document import LayerRow
    >>> layers = [LayerRow(name="fc", parameters=4, nonzeros=2)]
    >>> draw_strip(find_strips(layers)[0], layers, 1)[:10]
    '<svg class'
    """
    known = [
        (share, row.name)
        for share, row in zip(strip.shares, layers, strict=True)
        if share is not None
    ]
    (least, first), (most, last) = min(known), max(known)
    ends = f"Least in {first} ({least:.0%}), most in {last} ({most:.0%})."
    words = f"{len(known)} layers in the model's order. {ends}"
    cells = _cells(strip, len(layers))
    stretched = 'preserveAspectRatio="none" '
    return drawing(f"heat-{number}", (_WIDTH, _HEIGHT), strip.label, words, cells, stretched)


def _cells(strip: Strip, count: int) -> list[str]:
    """Draw all cells of one colour as one path: a few bytes each."""
    width = _WIDTH / count
    gap = min(1.5, width / 8)
    kinds: dict[str, str] = {}
    for i, share in enumerate(strip.shares):
        kind = "none" if share is None else f"{strip.ramp}{step_of(share)}"
        x, end = short(i * width), short((i + 1) * width - gap)
        kinds[kind] = kinds.get(kind, "") + f"M{x} 0H{end}V{_HEIGHT}H{x}z"
    return [path(d, kind) for kind, d in kinds.items()]


def step_of(share: float) -> int:
    """Return which colour of the ramp a share has.

    Examples
    --------
    >>> step_of(0), step_of(0.5), step_of(1)
    (0, 3, 5)
    """
    return min(int(share * _STEPS), _STEPS - 1)


def _noise(decibel: float | None) -> float | None:
    """Return the noise level, from 0 to 1."""
    if decibel is None:
        return None
    return min(max((QUIET - decibel) / (QUIET - LOUD), 0.0), 1.0)
