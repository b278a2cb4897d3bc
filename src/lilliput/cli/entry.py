"""Where the command starts: make the streams safe, build the commands, run the one that was asked for."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lilliput import __version__

_EXTRA = ("typer", "rich")
_PLAIN = {"÷": "/", "×": "x", "→": "->", "Δ": "d", "±": "+-", "…": "...", "–": "-", "−": "-"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``lilliput`` with arguments, those of the process by default, and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the command's name.

    Examples
    --------
    >>> try:
    ...     main(["--version"])
    ... except SystemExit as done:
    ...     print(done.code)
    lilliput 0.1.0
    0
    """
    codecs.register_error("lilliput", _spell_out)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="lilliput")
    try:
        from lilliput.cli.app import make_app
        from lilliput.cli.group import run
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(_without_extra(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        sys.exit(130)
    app = make_app(is_rich=sys.stdout.isatty())
    if not {"", str(Path.cwd())} & set(sys.path):  # only now: a file here may be called random.py
        sys.path.insert(0, str(Path.cwd()))  # as "python -m lilliput" has it
    sys.exit(run(app, arguments))


def _without_extra(arguments: Sequence[str]) -> int:
    """Run what needs neither typer nor rich; say what to install for all else."""
    if list(arguments) == ["--version"]:
        print(f"lilliput {__version__}")
        return 0
    if "doctor" in arguments[:1]:
        from lilliput.cli.checkup import describe, examine

        found = examine()
        print(
            json.dumps(found, indent=2)
            if "--json" in arguments
            else "\n".join(map(str, describe(found)))
        )
        return 0
    print("error: the command line needs: pip install 'lilliput[cli]'", file=sys.stderr)
    return 3


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """Return what to write on a terminal that lacks a character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(x, "?") for x in lacking), error.end
