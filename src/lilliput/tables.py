"""The short table that represents an object at the end of a notebook cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lilliput.printing import printable

MOST_ROWS = 30


def html_table(
    rows: Iterable[Sequence[object]],
    header: Sequence[object] = (),
    title: object = "",
    notes: Iterable[object] = (),
    most_rows: int = MOST_ROWS,
) -> str:
    """Return a small HTML table for ``_repr_html_``; every text in it is escaped.

    Parameters
    ----------
    rows : iterable of sequence
        The cells, row by row; numbers are aligned to the right. Format floats yourself.
    header : sequence, optional
        The titles of the columns.
    title : str, optional
        One line above the table.
    notes : iterable of str
        Lines below the table, in small print.
    most_rows : int
        How many rows to show; the others are counted in a last row.

    Examples
    --------
    >>> table = html_table([("a<b", 1024)], header=("layer", "weights"))
    >>> "a&lt;b" in table, "1,024" in table
    (True, True)
    """
    listed = [tuple(row) for row in rows]
    left_out = len(listed) - most_rows
    body = [_row("td", row, [_side(cell) for cell in row]) for row in listed[:most_rows]]
    if left_out > 0:
        body.append(_row("td", (f"… and {left_out:,} more",), ["left"]))
    sides = [_side(cell) for cell in listed[0]] if listed else []
    sides += ["left"] * (len(header) - len(sides))
    head = f"<thead>{_row('th', header, sides)}</thead>" if header else ""
    top = f"<p><b>{_text(title)}</b></p>" if title else ""
    small = "<br>".join(_text(note) for note in notes)
    bottom = f"<p><small>{small}</small></p>" if small else ""
    return f"{top}<table>{head}<tbody>{''.join(body)}</tbody></table>{bottom}"


def _row(tag: str, cells: Sequence[object], sides: Sequence[str]) -> str:
    inside = "".join(
        f'<{tag} style="text-align:{side}">{_text(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=False)
    )
    return f"<tr>{inside}</tr>"


def _side(cell: object) -> str:
    """Return the side to align a cell to."""
    is_number = isinstance(cell, (int, float)) and not isinstance(cell, bool)
    return "right" if is_number else "left"


def _text(cell: object) -> str:
    shown = f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else cell
    return escape(printable(shown))
