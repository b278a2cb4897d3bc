"""``lilliput benchmark``: format × size × metric × milliseconds, one row per format."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.formats import Writer, all_formats, choose_formats
from lilliput.cli.functions import optional_function
from lilliput.cli.inputs import Sources
from lilliput.cli.models import is_file
from lilliput.cli.table import Table
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, LilliputError
from lilliput.export.targets.table import SUFFIXES

Row = tuple[str, str, Any]  # the given name, its format, and the model or opened file


def benchmark(
    terminal: Terminal,
    sources: Sources,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help=f"module:factory, and files: {', '.join(SUFFIXES)}."
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            help=f"{', '.join(all_formats())}; separate several with commas.",
        ),
    ] = None,
    evaluate: options.Evaluate = None,
    runs: Annotated[
        int, typer.Option("--runs", min=1, help="Maximum number of calls to time.")
    ] = 50,
    batches: Annotated[
        int,
        typer.Option("--batches", min=1, help="Number of batches of --data for int8 calibration."),
    ] = 8,
    trust: options.Trust = False,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table", metavar="FOLDER", help="Show the latency tables of searches instead."
        ),
    ] = None,
) -> None:
    """Measure a model in several formats, and files.

    Calls alternate, so that all rows are measured under the same conditions.
    """
    if table is not None:
        _show_tables(terminal, table, targets)
        return
    if not targets:
        raise ConfigError(
            "Missing argument 'MODEL...': usage: lilliput benchmark MODEL..., or --table FOLDER."
        )
    choose_formats(formats or [], "all")
    models = [x for x in targets if not is_file(x)]
    if len(models) > 1:
        raise ConfigError(
            f"received the models {', '.join(models)}; benchmark one at a time, along with any number of "
            "files."
        )
    if formats and not models:
        raise ConfigError(
            f"--format {formats[0]} needs a model to export; files are measured as they are."
        )
    if terminal.dry_run:
        known = formats or ["every format of its framework"]
        steps = [f"write {x} as {', '.join(known)} into a temporary folder" for x in models]
        terminal.would([*steps, f"execute each row {runs} times, alternating, and evaluate it"])
        return
    from lilliput.cli.executed import open_all

    metric = optional_function(evaluate, "--evaluate")
    with tempfile.TemporaryDirectory() as folder:
        opened, framework, example = open_all(targets, sources, trust)
        rows: list[Row] = []
        if models:
            model = next(x for x, n in zip(opened, targets, strict=True) if n == models[0])
            asked = choose_formats(formats or [], framework)
            known = sources.batches(batches) if any("int8" in x for x in asked) else []
            writer = Writer(model, framework, Path(folder), example, known)
            rows = _write(terminal, writer, models[0], asked, must_all=bool(formats))
        files = [(n, x) for n, x in zip(targets, opened, strict=True) if is_file(n)]
        rows += [(name, Path(name).suffix[1:], file) for name, file in files]
        found = _measure(rows, example, metric, runs)
    terminal.result({"rows": found}, *_parts(found, evaluate))


def _show_tables(terminal: Terminal, folder: Path, targets: list[str] | None) -> None:
    """Print the networks timed for searches, and how well estimates fit them."""
    from lilliput.search.latency import LatencyTable

    if targets:
        raise ConfigError(f"--table shows earlier timings; leave {targets[0]} out.")
    files = [folder] if folder.is_file() else sorted(folder.glob("latency-*.json"))
    if not files:
        raise ConfigError(f"--table {folder}: there is no latency table; a search writes one.")
    rows: list[dict[str, Any]] = []
    for table in map(LatencyTable.read, files):
        held = table.document
        for name, model in held.models.items():
            rows.append(
                {
                    "runtime": held.runtime,
                    "cpu": held.cpu,
                    "threads": held.threads,
                    "model": name,
                    "milliseconds": model.milliseconds,
                    "networks": len(model.networks),
                    "fastest": min((x.ratio for x in model.networks), default=None),
                    "error": table.times(name).error(),
                }
            )
    columns = ["runtime", "cpu", ">threads", "model", ">ms", ">networks", ">fastest", ">error"]
    cells = [
        [
            *(row["runtime"], row["cpu"], str(row["threads"]), row["model"]),
            *(_number(row["milliseconds"], ".3g"), str(row["networks"])),
            *(_number(row["fastest"], ".2f"), _number(row["error"], ".1%")),
        ]
        for row in rows
    ]
    note = (
        "fastest: the fastest network, relative to the original; error: mean error of the estimates"
    )
    terminal.result({"rows": rows}, Table(columns, cells), "", note)


def _write(
    terminal: Terminal, writer: Writer, name: str, formats: list[str], must_all: bool
) -> list[Row]:
    """Return a row per format; one that was not requested may be missing, with a note."""
    from lilliput.cli.executed import open_executed

    rows: list[Row] = []
    if not writer.batches and any("int8" in kind for kind in formats):
        terminal.note("note: int8 is calibrated on the example inputs; pass --data for real ones")
    for kind in formats:
        terminal.note(f"preparing {name} as {kind} …")
        try:
            made = writer.make(kind)
            rows.append((name, kind, open_executed(made) if isinstance(made, Path) else made))
        except LilliputError as error:
            if must_all or kind == writer.framework:
                raise
            terminal.note(f"note: without {kind}: {error}")
    return rows


def _measure(rows: list[Row], example: Any, evaluate: Any, runs: int) -> list[dict[str, Any]]:
    from lilliput.cli.executed import largest_difference, output_of
    from lilliput.measure.latency import noise
    from lilliput.report.measure import measure_all

    names = [name for name, _, _ in rows]
    models = [model for _, _, model in rows]
    figures = measure_all(models, example, evaluate=evaluate, names=names, runs=runs)
    outputs = [output_of(model, example) for model in models]
    return [
        {
            **taken.to_dict(),
            "format": kind,
            "max_difference": largest_difference(outputs[0], output),
            "speedup": figures[0].p50 / taken.p50 if figures[0].p50 and taken.p50 else None,
            "noise": noise(figures[0], taken),
        }
        for (_, kind, _), taken, output in zip(rows, figures, outputs, strict=True)
    ]


def _parts(rows: list[dict[str, Any]], evaluate: str | None) -> list[Any]:
    """Return the output for people."""
    metric = evaluate.rpartition(":")[2] if evaluate else "metric"
    columns = ["format", ">bytes", f">{metric}", ">ms p50", ">ms p95", ">speed", ">max |Δ|"]
    cells = [
        [
            Path(row["name"]).name if is_file(row["name"]) else row["format"],
            _number(row["bytes"], ","),
            _number(row["metric"], ".4f"),
            _number(row["p50"], ".3g"),
            _number(row["p95"], ".3g"),
            "–"
            if row["speedup"] is None
            else "noisy"
            if row["noise"]
            else f"{row['speedup']:.2f}×",
            _number(row["max_difference"], ".2g"),
        ]
        for row in rows
    ]
    if evaluate is None:
        columns, cells = _without(columns, 2), [_without(row, 2) for row in cells]
    runtimes = list(dict.fromkeys(row["runtime"] for row in rows))
    return [Table(columns, cells), "", *(f"measured with {text}" for text in runtimes)]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _without(items: list[str], index: int) -> list[str]:
    return items[:index] + items[index + 1 :]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "benchmark", "Look")(benchmark)
