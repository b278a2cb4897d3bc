"""Output of a command: its result to stdout, as text or as JSON, and everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from lilliput.cli.table import show


@dataclass
class Terminal:
    """The common output options of all commands.

    Parameters
    ----------
    json : bool
        The result is one JSON document, and nothing else is written to stdout.
    quiet : bool
        No progress and no notes.
    dry_run : bool
        The command prints what it would do, without doing it.
    traceback : bool
        Show the traceback of an error; used where the error is printed.
    """

    json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress and notes.")] = (
        False
    )
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and stop.")
    ] = False
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the Python traceback of an error.")
    ] = False
    stdout: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.stdout = sys.stdout

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keep the output of the user's own functions out of the JSON."""
        with contextlib.redirect_stdout(sys.stderr if self.json else self.stdout):
            yield

    def note(self, text: str) -> None:
        """Print a progress note, unless ``--quiet``."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def result(self, data: Any, *parts: Any) -> None:
        """Print the result of the command: ``data`` as JSON, or the parts for people."""
        if self.json:
            print(dump_json(data), file=self.stdout)
            return
        for part in parts:
            show(part, self.stdout)

    def would(self, steps: Sequence[str], **data: Any) -> None:
        """Print what the command would do."""
        lines = ["would", *(f"  {number}. {step}" for number, step in enumerate(steps, 1))]
        self.result({"dry_run": True, "would": list(steps), **data}, "\n".join(lines))


def to_plain(value: Any) -> Any:
    """Return a value that JSON can represent: paths as text, non-finite numbers as null.

    Examples
    --------
    >>> to_plain({"dB": math.inf, "shape": (1, 2)})
    {'dB': None, 'shape': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def dump_json(data: Any) -> str:
    """Return data as JSON for people and machines."""
    return json.dumps(to_plain(data), indent=2)


def some(names: Sequence[str], count: int = 6) -> str:
    """Return the first few of some names, and how many more there are.

    Examples
    --------
    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
