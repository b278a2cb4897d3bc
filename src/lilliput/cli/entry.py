"""Where the command starts: make the streams safe, build the commands, run the one that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


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
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))  # as "python -m lilliput" has it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # "→" on a terminal that has none
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
    sys.exit(run(make_app(is_rich=sys.stdout.isatty()), arguments))
