"""``lilliput doctor``: what is installed, what is missing, and the CPU's features."""

from __future__ import annotations

import typer

from lilliput.cli.command import command
from lilliput.cli.terminal import Terminal


def doctor(terminal: Terminal) -> None:
    """Show what is installed or missing, and the CPU."""
    if terminal.dry_run:
        terminal.would(["read the versions of installed packages", "read what the CPU can do"])
        return
    from lilliput.cli.checkup import describe, examine

    found = examine()
    terminal.result(found, *describe(found))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", "Help")(doctor)
