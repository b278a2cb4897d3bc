"""The result of a search: a config list, the network, its file, and all trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.measure.receipt import Receipt
from lilliput.search.task import Task, Trial
from lilliput.search.verdict import MET


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Parameters
    ----------
    config_list : list of dict
        Sparsity and bits of each layer, in one list.
    pruning, quantization : list of dict
        The same as config lists for the pruner and the quantizer; empty if there is nothing to do.
    front : list of dict
        Trials that no other one beats in everything: ``costs``, ``metric`` and
        ``config_list``, the best metric first.
    receipt : Receipt
        The original's file compared with the winner's, both executed and timed in the target runtime.
    model : object
        The network: cut, and with its quantizer attached.
    path : Path
        The file of the winner.
    verdict : str
        Whether that file meets the budget, by the figures of the receipt: ``"met"``, ``"not met"``, or
        ``"not shown"`` if the latency was too noisy to decide; the notes there say more.
    """

    config_list: list[dict[str, Any]]
    pruning: list[dict[str, Any]]
    quantization: list[dict[str, Any]]
    front: list[dict[str, Any]]
    receipt: Receipt
    model: Any
    path: Path
    verdict: str
    _lines: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether the file was shown to meet the budget."""
        return self.verdict == MET

    def explain(self) -> str:
        """Return, line by line, the choice for each layer, its score, and the state of each budget."""
        return "\n".join(self._lines)

    def __str__(self) -> str:
        return str(self.receipt)


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that no other one beats in the metric and all costs, the best metric first.

    Examples
    --------
    >>> macs, metrics = (4.0, 2.0, 3.0), (0.9, 0.8, 0.7)
    >>> tried = [Trial((i,), {"macs": m}, metrics[i]) for i, m in enumerate(macs)]
    >>> [trial.choice for trial in pareto(tried)]
    [(0,), (1,)]
    """
    listed = sorted(trials, key=lambda t: (-t.metric, t.choice))
    return [t for t in listed if not any(_beats(other, t) for other in listed)]


def _beats(one: Trial, other: Trial) -> bool:
    pairs = [(-one.metric, -other.metric)]
    pairs += [(cost, other.costs[name]) for name, cost in one.costs.items() if name in other.costs]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def explain(task: Task, best: Trial) -> tuple[str, ...]:
    """Return the choice for each decision, and the state of each budget."""
    rows: list[Sequence[str]] = [("decision", "layers", "chosen", "of", "score")]
    is_prepared = task.is_prepared  # otherwise explaining could take longer than the search
    for number, (decision, index) in enumerate(zip(task.space.decisions, best.choice, strict=True)):
        shown = ["float" if x is None else str(x) for x in decision.choices]
        names = ", ".join(decision.layers)
        score = f"{task.scores[number][index]:.3g}" if is_prepared else "–"
        rows.append((decision.key, names, shown[index], ", ".join(shown), score))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    for name, value, bound in task.compared(best.costs):
        estimate = ""
        if is_prepared and name != "average_bits":
            estimate = f", estimated {task.estimate(name, best.choice):.4g}"
        if math.isinf(bound):  # to be minimized
            lines.append(f"{name}: {task.shown(name, value)}{estimate}")
        else:
            lines.append(f"{task.limits[name]}: {value:.4g} of at most {bound:.4g}{estimate}")
    if not is_prepared:
        lines.append("the search ended before sensitivities and estimates were available")
    error = task.clock.times.error() if task.clock is not None and is_prepared else None
    if error is not None and task.clock is not None:
        count = len(task.clock.times.networks)
        lines.append(f"latency estimates are {error:.1%} off on average ({count} networks timed)")
    lines.append(f"recovered without training: {task.maker.recover}")
    lines.append(f"metric: {best.metric:.4g}, of the original {task.baseline:.4g}")
    lines.append(f"tried: {len(task.tried)} of {task.space.count:,} config lists")
    return tuple(lines)
