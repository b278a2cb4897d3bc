"""``lilliput compare``: the receipt for two models, files, runs or reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.functions import optional_function
from lilliput.cli.inputs import Sources
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, StateError
from lilliput.export.targets.table import SUFFIXES

_WHAT = f"module:factory, a file ({', '.join(SUFFIXES)}), the folder of a run, or report.json"


def compare(
    terminal: Terminal,
    before: Annotated[str, typer.Argument(metavar="A", help=_WHAT)],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, to compare with A.")],
    sources: Sources,
    evaluate: options.Evaluate = None,
    runs: Annotated[int, typer.Option("--runs", min=0, help="Calls to time; 0 for none.")] = 50,
    trust: options.Trust = False,
) -> None:
    """Print the receipt for two models, files or runs.

    Compares size, speed, metric and outputs. Files are run on random numbers without --inputs.
    """
    stored = [_written(source) for source in (before, after)]
    written = [None if x is None else x[0] for x in stored]
    if terminal.dry_run:
        words = ["read the figures of" if x else "load and measure" for x in written]
        terminal.would([f"{w} {n}" for w, n in zip(words, (before, after), strict=True)])
        return
    names = [None if x else n for x, n in zip(written, (before, after), strict=True)]
    found = [name for name in names if name is not None]
    from lilliput.cli.executed import largest_difference, open_all, output_of
    from lilliput.measure.receipt import Receipt

    opened, _, example = open_all(found, sources, trust) if found else ([], "", None)
    executed = [None if name is None else opened.pop(0) for name in names]
    metric = optional_function(evaluate, "--evaluate")
    figures = _measure(executed, written, (before, after), example, metric, runs)
    difference = None
    if all(x is not None for x in executed):
        difference = largest_difference(*(output_of(x, example) for x in executed))
    metrics = [x[1] for x in stored if x is not None]
    name = evaluate.rpartition(":")[2] if evaluate else (metrics or ["metric"])[0]
    one, two = figures
    notes = ("latencies of runs are omitted: pass their files to time them together",)
    receipt = Receipt(one, two, name, difference, notes if metrics else (), one.name)
    terminal.result(receipt.to_dict(), receipt)


def _measure(
    executed: list[Any],
    written: list[Any],
    names: tuple[str, str],
    example: Any,
    evaluate: Any,
    runs: int,
) -> list[Any]:
    """Return the figures of both sides: measured now if possible, alternately, or as stored."""
    from lilliput.report.measure import measure_all

    there = [i for i in (0, 1) if executed[i] is not None]
    found = list(written)
    taken = measure_all(
        [executed[i] for i in there],
        example,
        evaluate=evaluate,
        names=[Path(names[i]).name for i in there],
        runs=runs,
    )
    for i, figures in zip(there, taken, strict=True):
        found[i] = figures
    if found[0].name == found[1].name:
        found = [replace(x, name=n) for x, n in zip(found, names, strict=True)]
    return found


def _written(source: str) -> Any:
    """Return the figures in the folder of a run, or in a report; None for other sources."""
    place = Path(source)
    if place.is_dir() and (place / "receipt.json").is_file():
        place = place / "receipt.json"
    if place.suffix != ".json":
        return None
    if not place.is_file():
        raise ConfigError(f"{source}: there is no such file.")
    from lilliput.measure.receipt import Receipt

    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        receipt = data.get("receipt", data) if isinstance(data, dict) else data
        found = Receipt.from_dict(receipt)
    except (OSError, ValueError, TypeError, AttributeError, StateError) as error:
        raise ConfigError(
            f"{source}: contains no receipt ({error}); expected report.json or receipt.json of a run."
        ) from error
    # Its latency was measured at another time, so a ratio with a current one would be meaningless.
    untimed: dict[str, Any] = {"p50": None, "p95": None, "runs": 0, "readings": ()}
    after = replace(found.after, name=f"{found.after.name} of {source}", **untimed)
    return after, found.metric_name


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "compare", "Look")(compare)
