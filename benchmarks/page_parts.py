"""The parts of pages of results: sections, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Record = dict[str, Any]
SECTIONS: list[tuple[str, str, tuple[str, ...], Callable[..., Iterator[str]]]] = []


def section(title: str, command: str, *files: str) -> Callable[[Any], Any]:
    """Register the function that writes the text of a section from its files."""

    def register(function: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        SECTIONS.append((title, command, files, function))
        return function

    return register


def machine(measured: Iterable[Record]) -> str:
    """Return where and when something was measured."""
    found = list(measured)
    names = []
    for one in found:
        flags = [*map(str.upper, one["flags"]), *([] if "vnni" in one["flags"] else ["no VNNI"])]
        names.append(
            f"{one['cpu']} ({', '.join(flags)}), {one['cores']} core{'s' * (one['cores'] > 1)}"
        )
    dates = sorted({one["date"] for one in found})
    return f"{' and '.join(dict.fromkeys(names))}, {' and '.join(dates)}"


def table(head: list[str], rows: Iterable[list[str]], note: str = "") -> Iterator[str]:
    """Yield the lines of a table, and of what there is to say about it below."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield from ("", note) if note else ()


def ours(text: str, is_ours: bool) -> str:
    return f"**{text}**" if is_ours and text else text


def percent(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")
