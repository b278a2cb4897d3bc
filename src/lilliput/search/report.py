"""The report of a search: all trials, the Pareto front, and the chosen one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lilliput.measure.receipt import Receipt
from lilliput.report.build import build_report
from lilliput.search.result import explain
from lilliput.search.task import Task, Trial


def write_report(
    task: Task,
    best: Trial,
    receipt: Receipt,
    folder: Path,
    points: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write ``report.html`` and ``report.json`` into a folder.

    Parameters
    ----------
    task : Task
        The search, with its trials.
    best : Trial
        The chosen trial.
    receipt : Receipt
        The original compared with it.
    folder : Path
        The folder to write to.
    points : sequence of mapping
        Other results, such as networks that were trained afterwards.
    """
    report = build_report(
        receipt,
        points=[*points_of(task), *points],
        groups=task.space.groups,
        recipe=json.dumps(task.space.config_list(best.choice), indent=1),
        title="Say the goal",
        notes=[*explain(task, best), *_lists(task)],
    )
    report.save(folder / "report.html")


def points_of(task: Task) -> list[dict[str, Any]]:
    """Return the trials in order."""
    found = []
    for number, trial in enumerate(task.tried.values(), 1):
        point: dict[str, Any] = {"name": f"trial {number}", "metric": trial.metric}
        point["macs"] = round(trial.costs["macs"])
        if "bytes" in trial.costs:
            point["bytes"] = round(trial.costs["bytes"])
        if "latency" in trial.costs and task.clock is not None:
            point["p50"] = trial.costs["latency"] * task.clock.milliseconds
        found.append(point)
    return found


def _lists(task: Task) -> list[str]:
    """Return the config list of each trial, for copying."""
    rows = enumerate(task.tried.values(), 1)
    return [f"trial {n}: {json.dumps(task.space.config_list(t.choice))}" for n, t in rows]
