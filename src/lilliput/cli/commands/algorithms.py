"""``lilliput list``: the algorithms, their purpose, and their papers."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from lilliput.cli.command import command
from lilliput.cli.table import Table
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, nearest


def list_algorithms(
    terminal: Terminal,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A glob, such as 'l*'.")] = "*",
) -> None:
    """List the algorithms, with their papers."""
    if terminal.dry_run:
        terminal.would([f"list the algorithms whose name matches {pattern!r}"])
        return
    rows = [row for row in all_algorithms() if _matches(row, pattern)]
    if not rows:
        known = [row["name"] for row in all_algorithms()]
        raise ConfigError(
            f"no algorithm matches {pattern!r}.{nearest(pattern, known)} Known: {', '.join(known)}."
        )
    cells = [
        [
            row["name"],
            row["kind"],
            ", ".join(row["frameworks"]),
            "\n".join(filter(None, (row["what"], row["paper"]))),
        ]
        for row in rows
    ]
    table = Table(["name", "kind", "for", "what it does, and the paper"], cells)
    terminal.result({"algorithms": rows}, table)


def all_algorithms() -> list[dict[str, Any]]:
    """Return a description of every registered algorithm, including those of other packages.

    Examples
    --------
    >>> [row["frameworks"] for row in all_algorithms() if row["name"] == "level"]
    [['torch', 'keras']]
    """
    from lilliput.registry import REGISTRIES

    rows = []
    for registry in REGISTRIES:
        for name in registry.names():
            cls = registry.get(name)
            rows.append(
                {
                    "name": name,
                    "kind": registry.kind,
                    "class": cls.__name__,
                    "frameworks": list(cls.backends),
                    "what": _first_sentence(cls),
                    "paper": vars(cls).get("paper", ""),
                }
            )
    return rows


def _first_sentence(cls: type) -> str:
    text = (inspect.getdoc(cls) or "").partition("\n")[0]
    return text.partition("; see ")[0].rstrip(".")


def _matches(row: dict[str, Any], pattern: str) -> bool:
    from fnmatch import fnmatch

    return any(fnmatch(str(row[key]).lower(), pattern.lower()) for key in ("name", "class"))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "list", "Help")(list_algorithms)
