"""``lilliput run``: the steps of a recipe, from a trained model to files, a receipt and a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli.command import command
from lilliput.cli.options import Run
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError


def run(
    terminal: Terminal,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML or JSON file.")],
    options: Run,
) -> None:
    """Run the steps of a recipe; --resume continues it."""
    try:
        execute(terminal, recipe, options, f"{recipe.stem}-run")
    except ConfigError as error:
        if not str(error).startswith("recipe:"):
            raise
        raise ConfigError(error.problems, title=str(recipe)) from error.__cause__


def execute(
    terminal: Terminal, source: Path | Mapping[str, Any], options: Run, default: str
) -> None:
    """Plan or run a recipe, given as a file or as data, and print the receipt."""
    from lilliput.recipes import load_recipe, run

    recipe = load_recipe(source)
    if options.seed is not None:
        recipe = recipe.model_copy(update={"seed": options.seed})
    folder = options.output or Path(default)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {folder}: is a file, expected a folder to write into.")
    if terminal.dry_run:
        from lilliput.recipes import plan

        planned = plan(recipe, trust=options.trust)
        terminal.result({"dry_run": True, "folder": folder, **planned.to_dict()}, str(planned))
        return
    result = run(
        recipe,
        folder,
        resume=options.resume,
        progress=not terminal.quiet,
        trust=options.trust,
    )
    data = {
        "receipt": result.receipt.to_dict(),
        "files": result.files,
        "report": result.report,
        "folder": result.folder,
    }
    lines = [f"file    {path}" for path in result.files]
    lines += [f"report  {result.report}"] if result.report else []
    terminal.result(data, result.receipt, "\n".join(["", *lines]))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "run", "Start here")(run)
