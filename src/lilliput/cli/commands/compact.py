"""``lilliput compact``: convert a weights file to the smallest form, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, StateError


def compact(
    terminal: Terminal,
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .safetensors file, or a compact one.")
    ],
    output: options.OutputFile = None,
) -> None:
    """Convert a safetensors file to a compact file, or back."""
    if not source.is_file():
        raise ConfigError(f"{source}: no such file; pass a weights file.")
    from lilliput.compact.saving import convert, is_compact_file

    suffix = ".safetensors" if is_compact_file(source) else ".lil"
    target = output or source.with_suffix(suffix)
    if target.resolve() == source.resolve():
        raise ConfigError(f"--output {target}: this is the input file; pass another name.")
    if target.exists():
        raise ConfigError(
            f"{target}: already exists; remove it, or pass another name with --output."
        )
    options.check_folder_of(target)
    if terminal.dry_run:
        terminal.would([f"read {source}", f"write {target}"], file=target)
        return
    try:
        before, after = convert(source, target)
    except StateError as error:
        raise ConfigError(str(error)) from error
    data = {"file": target, "bytes": after, "bytes_before": before}
    terminal.result(data, f"{target}: {after:,} bytes, from {before:,}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "compact", "Compress")(compact)
