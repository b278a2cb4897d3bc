"""The commands of ``lilliput``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from lilliput import __version__
from lilliput.cli.commands import (
    algorithms,
    analyze,
    auto,
    benchmark,
    compact,
    compare,
    config,
    demo,
    doctor,
    inspect,
    repair,
    report,
    run,
    shortcuts,
)
from lilliput.cli.group import Commands

_HELP = """Make trained neural networks smaller and faster: prune, quantize, export.

A model is module:factory, data and evaluation are module:function, all found from the working
directory. Every command has --json, --quiet and --dry-run.

Models, recipes and run folders name functions, which are imported and called: use only those you trust. What
is in files of weights, reports and config lists is only read.

Exit codes: 0 done, 1 the work failed or was refused, 2 bad command line, recipe, config or input
file, 3 something is not installed, 4 done, but the latency was too noisy to show that a budget is met, 130
interrupted.
"""


def make_app(is_rich: bool = False) -> typer.Typer:
    """Return all commands; ``is_rich`` formats help with lines and colours."""
    app = typer.Typer(
        cls=Commands,
        help=_HELP,
        rich_markup_mode="rich" if is_rich else None,
        invoke_without_command=True,
        add_completion=False,
    )
    app.callback()(_start)
    parts = (
        demo,
        run,
        auto,
        shortcuts,
        repair,
        compact,
        inspect,
        analyze,
        benchmark,
        compare,
        report,
    )
    for part in parts:
        part.register(app)
    config.register(app, is_rich)
    algorithms.register(app)
    doctor.register(app)
    return app


def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"lilliput {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
