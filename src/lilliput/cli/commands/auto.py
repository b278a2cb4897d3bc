"""``lilliput auto``: produce a file that meets a goal."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli import options
from lilliput.cli.command import InterruptedByUserError, command
from lilliput.cli.failures import UNPROVEN, refuse
from lilliput.cli.functions import load_function
from lilliput.cli.inputs import Sources, require_inputs
from lilliput.cli.models import open_model
from lilliput.cli.progress import log_shown
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError
from lilliput.search.budget import parse_budget
from lilliput.search.journal import NAME as JOURNAL


def auto(
    terminal: Terminal,
    model: options.Model,
    sources: Sources,
    run: options.Run,
    evaluate: options.Evaluate = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME=AMOUNT",
            help="latency=0.5, latency='12 ms', bytes=0.25, macs=…, params=…; repeatable.",
        ),
    ] = None,
    drop: Annotated[
        float | None, typer.Option("--drop", min=0, help="Largest acceptable drop of the metric.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Time limit; no new step starts afterwards.")
    ] = None,
    epochs: Annotated[
        int,
        typer.Option("--epochs", min=0, help="Maximum number of training epochs, without --hours."),
    ] = 10,
    config: options.Config = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="The runtime that executes the file.")
    ] = "onnxruntime",
    assume_vnni: options.AssumeVnni = None,
) -> None:
    """Search, prune, cut, recover, quantize and export, until the goal is met.

    The first file is ready early and better ones replace it; Ctrl-C keeps the best so far, and --resume
    continues an interrupted search.
    """
    budget = parse_targets(target or [], drop)
    parse_budget(budget)  # before anything is imported
    if evaluate is None or sources.data is None:
        raise ConfigError("auto needs --data module:function and --evaluate module:function.")
    folder = run.output or Path("auto-run")
    if (folder / JOURNAL).exists() and not run.resume:
        raise ConfigError(
            f"{folder}: already contains a search; continue it with --resume, or choose another folder with "
            "--output."
        )
    metric, data = load_function(evaluate, "--evaluate"), load_function(sources.data, "--data")
    loaded, _, example = open_model(model, sources, run.trust)
    given: dict[str, Any] = {"example_inputs": require_inputs(example), "target": runtime}
    if config is not None:
        given["config_list"] = config
    if assume_vnni is not None:
        given["export_options"] = {"assume_vnni": assume_vnni}
    if terminal.dry_run:
        _plan(terminal, loaded, metric, data, budget, given)
        return
    from lilliput.recipes.auto import compress
    from lilliput.search.verdict import NOT_SHOWN

    given |= {"epochs": epochs, "hours": hours, "seed": run.seed or 0}
    try:
        with log_shown(terminal):
            done = compress(
                loaded, budget=budget, data=data, evaluate=metric, folder=folder, **given
            )
    except KeyboardInterrupt as error:
        kept = "" if any(folder.glob("model.*")) else "no file was written yet"
        raise InterruptedByUserError(kept) from error
    result = {
        "path": done.path,
        "is_met": done.is_met,
        "verdict": done.verdict,
        "receipt": done.receipt.to_dict(),
        "config_list": done.config_list,
        "history": done.history,
    }
    written = f"written to {folder}: {done.path.name}, found.json, report.html"
    if done.verdict == NOT_SHOWN:
        said = _measure_again(done.path, sources)
        terminal.result(result | {"measure_again": said}, done.receipt, "", written, *said)
        raise typer.Exit(UNPROVEN)
    terminal.result(result, done.receipt, "", written)
    if not done.is_met:
        refuse(
            terminal,
            f"the budget is not met; {done.path} is the closest result. Allow more --hours or --epochs, or "
            "relax the budget.",
        )


def _measure_again(path: Path, sources: Sources) -> list[str]:
    """Return the command to measure again on an idle machine."""
    words = ["compare", str(path.with_name(f"original{path.suffix}")), str(path)]
    given = {
        "--inputs": sources.inputs,
        "--input-shape": sources.input_shape,
        "--data": sources.data,
    }
    words += [word for name, value in given.items() if value for word in (name, str(value))]
    return [
        "the budget is not shown to be met: the latency was too "
        "noisy. Measure again on an idle machine, or add --resume to "
        "the command:",
        f"lilliput {shlex.join(words)}",
    ]


def parse_targets(targets: list[str], drop: float | None) -> dict[str, Any]:
    """Return a budget from ``name=amount`` texts.

    Examples
    --------
    >>> parse_targets(["latency=0.5", "bytes=2 MB"], 0.005)
    {'latency': 0.5, 'bytes': '2 MB', 'drop': 0.005}
    """
    budget: dict[str, Any] = {}
    for text in targets:
        name, mark, amount = text.partition("=")
        if not mark or not amount.strip():
            raise ConfigError(
                f"--target: received {text!r}, expected name=amount such as latency=0.5."
            )
        if name.strip() in budget:
            raise ConfigError(f"--target: {name.strip()} is given twice.")
        try:
            budget[name.strip()] = float(amount)
        except ValueError:
            budget[name.strip()] = amount.strip()
    if not budget:
        raise ConfigError("--target is missing: name what to reduce, as in latency=0.5.")
    return budget if drop is None else {**budget, "drop": drop}


def _plan(
    terminal: Terminal, model: Any, metric: Any, data: Any, budget: dict[str, Any], given: Any
) -> None:
    """Report how many trials there are, and how long they take by timing one evaluation."""
    from lilliput.recipes.auto import DEFAULT_RULES
    from lilliput.search.search import Search

    rules = given.pop("config_list", list(DEFAULT_RULES))
    batch = [next(iter(data()))]
    limits = {k: v for k, v in budget.items() if k != "drop"}
    search = Search(model, rules, budget=limits, evaluate=metric, data=batch, **given)
    start = time.perf_counter()
    metric(model)
    seconds = time.perf_counter() - start
    networks = search.networks if "latency" in budget else 0
    open_ = sum(size > 1 for size in search.space.sizes)
    steps = [
        f"time {networks} networks for the latency table",
        f"choose from {search.space.count:,} config lists: {open_} decisions",
        f"evaluate at most 8 of them (one evaluation takes {seconds:.2g} s)",
        "train the result, with the original as teacher, until the metric drop is acceptable",
    ]
    terminal.would(steps if networks else steps[1:], decisions=open_)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "auto", "Compress")(auto)
