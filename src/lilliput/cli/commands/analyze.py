"""``lilliput analyze``: how much each layer can lose through pruning and quantization."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli import options
from lilliput.cli.analysis import PruningScan, QuantizationScan, check_folder, write_json
from lilliput.cli.command import command
from lilliput.cli.functions import load_function, optional_function
from lilliput.cli.inputs import Sources
from lilliput.cli.models import open_model
from lilliput.cli.table import Table
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError


def analyze(
    terminal: Terminal,
    model: options.Model,
    sources: Sources,
    run: options.Run,
    evaluate: options.Evaluate = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="A one-shot pruner, such as l1 or level.")
    ] = "l1",
    sparsities: Annotated[
        str | None,
        typer.Option(
            "--sparsities", metavar="0.3,0.5", help="Sparsities to try; 0.1 to 0.9 by default."
        ),
    ] = None,
    quantizer: Annotated[str, typer.Option("--quantizer", help="A quantizer.")] = "ptq",
    bits: Annotated[int, typer.Option("--bits", "-b", min=1, max=16, help="Bits to try.")] = 8,
    batches: Annotated[
        int, typer.Option("--batches", min=1, help="Number of batches of --data for quantization.")
    ] = 4,
) -> None:
    """Measure how much each layer can lose.

    Each layer is pruned alone (needs --evaluate) and quantized alone (needs --data).
    """
    if evaluate is None and sources.data is None:
        raise ConfigError(
            "pass --evaluate module:function (pruning), --data module:function (quantization) or both."
        )
    folder = run.output or Path("analyze-run")
    check_folder(folder, run.resume)
    shares = _parse_sparsities(sparsities)
    metric = optional_function(evaluate, "--evaluate")
    if run.seed is not None:
        _set_seed(run.seed, model)
    scans: dict[str, Any] = {}
    loaded, _, example = open_model(model, sources, run.trust)
    if metric is not None:
        scans["pruning"] = PruningScan(loaded, metric, algorithm, shares, folder, example)
    if sources.data is not None:
        taken = sources.batches(batches)
        scans["quantization"] = QuantizationScan(loaded, quantizer, bits, taken, metric, folder)
    if terminal.dry_run:
        _plan(terminal, scans, loaded, metric)
        return
    folder.mkdir(parents=True, exist_ok=True)
    found = {kind: scan.run(terminal.note) for kind, scan in scans.items()}
    write_json(folder / "analysis.json", found)
    terminal.result({**found, "folder": folder}, *_parts(found, folder))


def _plan(terminal: Terminal, scans: dict[str, Any], model: Any, metric: Any) -> None:
    """Report how many measurements there are, and how long they take by timing one evaluation."""
    from lilliput.recipes.planning import peak_memory

    seconds = None
    if metric is not None:
        start = time.perf_counter()
        metric(model)
        seconds = time.perf_counter() - start
    steps = [f"{kind}: {scan.units} measurements" for kind, scan in scans.items()]
    total = None if seconds is None else seconds * sum(scan.units for scan in scans.values())
    if total is not None:
        steps[-1] += f" (one evaluation takes {seconds:.2g} s; about {total:.0f} s in total)"
    memory = peak_memory()
    if memory is not None:
        steps.append(f"memory: {memory / 1e6:,.0f} MB so far, plus a copy of one layer at a time")
    terminal.would(steps, seconds=total, memory_bytes=memory)


def _parse_sparsities(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--sparsities: received {text!r}, expected numbers in (0, 1) such as 0.3,0.5,0.7."
        ) from None


def _set_seed(seed: int, model: str) -> None:
    """Seed every generator that the user's functions may use."""
    import sys

    from lilliput.recipes.fingerprints import seed_python
    from lilliput.recipes.framework import loop_named
    from lilliput.recipes.step_specs import is_reference

    if is_reference(model):
        load_function(model, "model")  # imports its framework, so that the seed reaches it
    seed_python(seed)
    for name in ("torch", "keras"):
        if name in sys.modules:
            loop_named(name).seed(seed)


def _parts(found: dict[str, Any], folder: Path) -> list[Any]:
    """Return the output for people: one table each, most sensitive layers first."""
    parts: list[Any] = []
    if "pruning" in found:
        rows = found["pruning"]["layers"]
        shares = list(dict.fromkeys(share for row in rows for share in row["metrics"]))
        cells = [
            [row["layer"], *(_cell(row["metrics"].get(share)) for share in shares)] for row in rows
        ]
        title = f"metric with one layer pruned (unpruned:  {found['pruning']['baseline']:.4g})"
        parts += [Table(["layer", *(f">{share}" for share in shares)], cells, title), ""]
    if "quantization" in found:
        rows = sorted(found["quantization"]["layers"], key=lambda row: row["sqnr"] or 0)
        has_metric = any("metric" in row for row in rows)
        cells = [
            [
                row["layer"],
                _cell(row["sqnr"], ".1f"),
                *([_cell(row["metric"])] if has_metric else []),
            ]
            for row in rows
        ]
        columns = ["layer", ">SQNR dB", *([">metric"] if has_metric else [])]
        title = f"with one layer at {found['quantization']['bits']} bits, the most sensitive first"
        parts += [Table(columns, cells, title), ""]
    return [*parts, f"written to {folder}: {', '.join(sorted(_files(found)))}, analysis.json"]


def _files(found: dict[str, Any]) -> list[str]:
    return [Path(part["file"]).name for part in found.values()]


def _cell(value: float | None, form: str = ".4g") -> str:
    return "–" if value is None else format(value, form)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "analyze", "Look")(analyze)
