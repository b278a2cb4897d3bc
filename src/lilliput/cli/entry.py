"""Where the command starts: make the streams safe, build the commands, run the one that was asked for."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_PLAIN = {"÷": "/", "×": "x", "→": "->", "Δ": "d", "±": "+-", "…": "...", "–": "-", "−": "-"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``lilliput`` with arguments, those of the process by default, and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands behind the command's name.

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
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print("error: the command line needs: pip install typer", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
    app = make_app(is_rich=sys.stdout.isatty())
    if not {"", str(Path.cwd())} & set(sys.path):  # only now: a file here may be called random.py
        sys.path.insert(0, str(Path.cwd()))  # as "python -m lilliput" has it
    sys.exit(run(app, arguments))


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """Return what to write on a terminal that lacks a character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(x, "?") for x in lacking), error.end
