"""``lilliput report``: the HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, StateError


def report(
    terminal: Terminal,
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or its report.json.")
    ],
    output: options.OutputFile = None,
) -> None:
    """Write the HTML page of a run, and print its path."""
    data = find_report(source)
    page = output or data.with_suffix(".html")
    if page.suffix not in (".html", ".htm"):
        raise ConfigError(f"--output {page}: expected a name that ends in .html.")
    options.check_folder_of(page)
    if terminal.dry_run:
        terminal.would([f"read {data}", f"write {page} and its JSON file"], page=page)
        return
    from lilliput.report.document import Report

    try:
        document = Report.load(data)
    except StateError as error:
        raise ConfigError(str(error)) from error
    document.save(page)
    terminal.result({"report": page, "bytes": page.stat().st_size}, str(page))


def find_report(source: Path) -> Path:
    """Return the report.json of a run folder, or the given one."""
    place = source / "report.json" if source.is_dir() else source
    if source.is_dir() and not place.is_file():
        raise ConfigError(
            f"{source}: contains no report.json; give the folder of a finished 'lilliput run'."
        )
    if not place.is_file():
        raise ConfigError(f"{source}: there is no such file or folder; give a run or report.json.")
    if place.suffix != ".json":
        raise ConfigError(f"{source}: expected the folder of a run, or report.json.")
    return place


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", "Look")(report)
