"""The start of the command: make the streams safe, build the commands, run the requested one."""

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
        The arguments after the command's name.

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
        sys.path.insert(0, str(Path.cwd()))  # as with "python -m lilliput"
    sys.exit(run(app, arguments))


def _without_extra(arguments: Sequence[str]) -> int:
    """Run commands that need neither typer nor rich; for the others, say what to install."""
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
    """Return a replacement for a character that a terminal lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(x, "?") for x in lacking), error.end
