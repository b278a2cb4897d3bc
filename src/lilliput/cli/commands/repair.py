"""``lilliput repair``: relax a config list until the metric drop is acceptable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.failures import refuse
from lilliput.cli.functions import load_function
from lilliput.cli.inputs import Sources, require_inputs
from lilliput.cli.models import open_model
from lilliput.cli.progress import log_shown
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError
from lilliput.files import write_atomically

_BATCHES = 16


def repair(
    terminal: Terminal,
    model: options.Model,
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The config list that loses too much.")
    ],
    sources: Sources,
    run: options.Run,
    drop: Annotated[
        float, typer.Option("--drop", min=0, help="Largest acceptable drop of the metric.")
    ],
    evaluate: options.Evaluate = None,
    cost: Annotated[
        str, typer.Option("--cost", help="The cost to minimize: latency, bytes, macs or params.")
    ] = "latency",
    trials: Annotated[
        int, typer.Option("--trials", min=2, help="Maximum number of config lists to evaluate.")
    ] = 10,
) -> None:
    """Relax a config list that loses too much of the metric.

    CONFIG is a YAML or JSON file, such as found.json of 'lilliput auto'.
    """
    if evaluate is None or sources.data is None:
        raise ConfigError("repair needs --data module:function and --evaluate module:function.")
    from lilliput.config.files import read_rules

    rules = read_rules(config)
    metric = load_function(evaluate, "--evaluate")
    loaded, _, example = open_model(model, sources, run.trust)
    folder = run.output or Path("repair-run")
    if terminal.dry_run:
        terminal.would(_plan(config, cost, trials))
        return
    from lilliput.search.repair import repair

    with log_shown(terminal):
        found = repair(
            loaded,
            rules,
            drop=drop,
            evaluate=metric,
            data=sources.batches(_BATCHES),
            example_inputs=require_inputs(example),
            folder=folder,
            cost=cost,
            trials=trials,
            seed=run.seed or 0,
        )
    write_atomically(folder / "found.json", json.dumps(found.config_list, indent=1).encode())
    result = {
        "path": found.path,
        "is_met": found.is_met,
        "verdict": found.verdict,
        "config_list": found.config_list,
        "front": found.front,
    }
    terminal.result(
        {**result, "receipt": found.receipt.to_dict()},
        found.receipt,
        "",
        f"written to {folder}: {found.path.name}, found.json, report.html",
    )
    if not found.is_met:
        refuse(
            terminal,
            f"{found.path}: the executed file loses more than --drop {drop:g} allows; allow a larger drop or "
            "more --trials.",
        )


def _plan(config: str, cost: str, trials: int) -> list[str]:
    """Return the steps of a repair."""
    from lilliput.search.search import NETWORKS

    steps = [f"evaluate at most {trials} config lists that are less aggressive than {config}"]
    return (
        [f"time {NETWORKS} networks for the latency table", *steps] if cost == "latency" else steps
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "repair", "Compress")(repair)
