"""Small bars, in cells and next to figures."""

from __future__ import annotations

from lilliput.charts.svg import short


def draw_bar(after: float, before: float | None = None) -> str:
    """Return a bar over the full width: the rest over the original, both as shares of 1.

    It repeats the number next to it, so it is hidden from screen readers.

    Examples
    --------
    >>> draw_bar(0.25).count("<rect")
    2
    """
    whole = 1.0 if before is None else before
    widths = [100 * min(max(share, 0.0), 1.0) for share in (whole, after)]
    rects = "".join(
        f'<rect class="{kind}" width="{short(width)}" height="6" rx="1"/>'
        for kind, width in zip(("whole", "left"), widths, strict=True)
    )
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f"{rects}</svg>"
    )
