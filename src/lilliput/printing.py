"""Show values of any origin: names with control characters, objects whose ``repr`` fails.

Everything that prints a name from a model or a value from a config goes through here.
"""

from __future__ import annotations

LIMIT = 80
# Characters that make a cell a formula in Excel and LibreOffice; and the quote itself, so that it
# can be undone.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def printable(text: object) -> str:
    r"""Return text with everything escaped that a terminal would act upon or hide.

    Control characters, escape sequences, line breaks and marks that change the direction of writing
    are written as in a Python string; letters of all scripts are kept.

    Examples
    --------
    >>> printable("conv\x1b[31m\nü")
    'conv\\x1b[31m\\nü'
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)


def shown(value: object, limit: int = LIMIT) -> str:
    """Return a short ``repr`` of any value for a message, whatever the value's own ``repr`` does.

    Examples
    --------
    >>> class Broken:
    ...     def __repr__(self): raise RuntimeError
    >>> shown(0.8), shown(Broken()), shown("x" * 90, limit=12)
    ('0.8', '<Broken>', "'xxxxxxxx...")
    """
    try:
        text = printable(repr(value))
    except Exception:  # junk may do anything; an integer of thousands of digits fails as well
        text = f"<{printable(type(value).__name__)}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def csv_cell(text: str) -> str:
    """Return a text for a CSV file that spreadsheets do not interpret as a formula.

    Examples
    --------
    >>> csv_cell("conv1"), csv_cell("=1+2")
    ('conv1', "'=1+2")
    """
    return f"'{text}" if text.startswith(_FORMULAS) else text


def from_csv_cell(cell: str) -> str:
    """Undo :func:`csv_cell`."""
    is_quoted = cell.startswith("'") and cell[1:].startswith(_FORMULAS)
    return cell[1:] if is_quoted else cell
