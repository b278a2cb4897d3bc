"""``lilliput demo``: a small network, from training to an integer file, in under three minutes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Annotated

import typer

from lilliput.cli.command import command
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError

_STEPS = (
    "train a small CNN on 1,347 handwritten digits (they come with scikit-learn)",
    "prune 70% of its channels over 15 epochs, on AGP's schedule",
    "cut the channels out, and fine-tune the smaller network",
    "train it with simulated 8-bit integers (QAT), and export an ONNX file",
    "run it in ONNX Runtime, and print the receipt (about a minute in total)",
)


def demo(
    terminal: Terminal,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for files and the report."),
    ] = Path("lilliput-demo"),
) -> None:
    """Run the whole workflow on a small model, in about a minute."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output}: is a file, expected a folder to write into.")
    if terminal.dry_run:
        terminal.would(_STEPS, folder=output)
        return
    from lilliput.demo import main

    spoken = contextlib.nullcontext()
    with contextlib.redirect_stdout(io.StringIO()) if terminal.quiet else spoken:
        receipt = main(output)
    if terminal.json or terminal.quiet:
        data = {"receipt": receipt.to_dict(), "report": output / "report.html", "folder": output}
        terminal.result(data, receipt, f"report: {output / 'report.html'}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "demo", "Start here")(demo)
