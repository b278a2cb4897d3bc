"""The building blocks of all drawings. Text is escaped here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from lilliput.charts.colors import resolved

Point = tuple[float, float]
Scale = Callable[[Point], Point]  # from values to a place in the drawing


def drawing(
    key: str,
    size: tuple[float, float],
    title: str,
    description: str,
    parts: Iterable[str],
    attributes: str = "",
) -> str:
    """Return an SVG element that scales with the page and is accessible to screen readers.

    Parameters
    ----------
    key : str
        Unique on the page; its class is ``chart`` and the part before the first ``-``.
    size : tuple
        Width and height of its coordinates.
    title, description : str
        Its title, and a description of its content.
    parts : iterable of str
        Elements.
    attributes : str
        Other attributes of the element.
    """
    width, height = (short(x) for x in size)
    return (
        f'<svg class="chart {key.partition("-")[0]}" viewBox="0 0 {width} {height}" {attributes}'
        f'role="img" aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{escape(title)}</title>'
        f'<desc id="{key}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def as_file(svg: str, size: tuple[float, float], style: str) -> str:
    """Return a drawing as a separate file, for light and dark mode.

    Parameters
    ----------
    svg : str
        The result of :func:`drawing`.
    size : tuple
        Width and height in pixels.
    style : str
        CSS, with the variables of the page's colours.
    """
    style = (
        f"text{{font:12px system-ui,sans-serif;fill:var(--soft)}}.paper{{fill:var(--card)}}{style}"
    )
    light, dark = (resolved(style, is_dark) for is_dark in (False, True))
    head, _, body = svg.partition(">")
    width, height = (short(x) for x in size)
    return (
        f'{head} xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"
        f'<rect class="paper" width="{width}" height="{height}"/>{body}'
    )


def short(value: float) -> str:
    """Return a coordinate to a tenth, in as few characters as possible.

    Examples
    --------
    >>> short(12.0), short(0.25), short(-3.14)
    ('12', '.2', '-3.1')
    """
    text = f"{value:.1f}".removesuffix(".0")
    text = "0" if text in ("-0", "") else text
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def text(place: Point, content: str, kind: str = "", anchor: str = "", hover: str = "") -> str:
    """Return a line of text, with a tooltip; ``anchor`` is ``middle`` or ``end``."""
    kind_ = f' class="{kind}"' if kind else ""
    anchor_ = f' text-anchor="{anchor}"' if anchor else ""
    hover_ = hovering(hover) if hover else ""
    at = f'x="{short(place[0])}" y="{short(place[1])}"'
    return f"<text {at}{kind_}{anchor_}>{hover_}{escape(content)}</text>"


def hovering(content: str) -> str:
    """Return the tooltip of an element."""
    return f"<title>{escape(content)}</title>"


def path(d: str, kind: str, hover: str = "") -> str:
    """Return a path with a tooltip."""
    kind_ = f' class="{kind}"' if kind else ""
    return f'<path{kind_} d="{d}"' + (f">{hovering(hover)}</path>" if hover else "/>")


def line_through(points: Sequence[Point]) -> str:
    """Return a path's data through points."""
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers within a range, at least two.

    Examples
    --------
    >>> nice_ticks(0.62, 0.97, about=4)
    [0.7, 0.8, 0.9]
    """
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    steps = (power, 2 * power, 5 * power, 10 * power)
    step = min(steps, key=lambda s: (abs(span / s - about), s))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last <= first:
        first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{i * step:.10g}") for i in range(first, max(last, first + 1) + 1)]


def padded(values: Sequence[float], share: float = 0.05) -> Point:
    """Return the range of values with a margin on both sides.

    Examples
    --------
    >>> padded([1.0, 3.0], share=0.5)
    (0.0, 4.0)
    """
    low, high = min(values), max(values)
    room = ((high - low) or abs(high) or 1.0) * share
    return low - room, high + room


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the numbers at ticks, all with the same decimals and unit.

    Examples
    --------
    >>> tick_labels([0.5, 1.0]), tick_labels([0, 5e5, 1e6])
    (['0.5', '1.0'], ['0', '0.5 M', '1.0 M'])
    """
    most = max(abs(tick) for tick in ticks)
    units = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k"))
    unit = next((text for least, text in units if most >= least), "")
    factor = 1e3 if unit == " k" else next((x for x, text in units if text == unit), 1.0)
    scaled = [tick / factor for tick in ticks]
    decimals = max(len(f"{x:.6g}".partition(".")[2]) for x in scaled)
    return ["0" if x == 0 else f"{x:.{decimals}f}{unit}".replace("-", "−") for x in scaled]


def tick_label(value: float) -> str:
    """Return one number in a few digits, large ones with a unit.

    Examples
    --------
    >>> tick_label(0.95), tick_label(1_500_000), tick_label(-0.31)
    ('0.95', '1.5 M', '−0.31')
    """
    return tick_labels([float(f"{value:.3g}")])[0]


def shortened(name: str, longest: int = 34) -> str:
    """Return the end of a long name, where names of layers differ.

    Examples
    --------
    >>> shortened("encoder.layers.11.output.dense", 16)
    '…11.output.dense'
    """
    return name if len(name) <= longest else f"…{name[1 - longest :]}"
