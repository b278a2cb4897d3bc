"""compress: state the goal, and get the file. Search, prune, cut, recover, quantize, export, check.

>>> import tempfile, torch
>>> torch.manual_seed(0)  # doctest: +ELLIPSIS
<torch._C.Generator object at ...>
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
>>> x = torch.randn(64, 8)
>>> wanted = model(x).argmax(1)
>>> def agreement(model):
...     return float((model(x).argmax(1) == wanted).float().mean())
>>> with tempfile.TemporaryDirectory() as folder:
...     done = compress(model, budget={"macs": 0.7, "drop": 0.5}, data=[x], evaluate=agreement, folder=folder)
>>> done.is_met, done.receipt.after.macs < 0.7 * done.receipt.before.macs
(True, True)
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.export.summary import cpu_lines
from lilliput.export.targets.executed import open_file
from lilliput.files import make_folder, write_atomically
from lilliput.measure.receipt import Receipt, take_receipt
from lilliput.recipes.auto_training import Recovery, again
from lilliput.report.measure import measure_all
from lilliput.search.budget import parse_budget
from lilliput.search.candidate import Candidate, evaluated
from lilliput.search.origin import digests_of_files
from lilliput.search.report import write_report
from lilliput.search.search import NETWORKS, Search
from lilliput.search.task import OutOfTimeError, Task, Trial
from lilliput.search.verdict import MET, NOT_SHOWN, judge

log = logging.getLogger("lilliput")

DEFAULT_RULES = (
    {
        "op_types": ["default"],
        "sparsity": {"choose": [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75]},
        "quant_bits": 8,
    },
)
_BATCHES = 16  # for sensitivities, recovery without training and calibration
_NEXT = ".next-"  # prefix of folders with files that are not judged yet
_SHARE_FOR_SEARCH = 0.5  # of the given time; the rest is for training


@dataclass(frozen=True, eq=False)
class Compressed:
    """The result of :func:`compress`.

    Parameters
    ----------
    path : Path
        The file, executed and compared with the model.
    receipt : Receipt
        The original's file compared with it.
    verdict : str
        Whether every budget is met, including the drop of the metric, by the figures of the receipt:
        ``"met"``, ``"not met"``, or ``"not shown"`` if only the latency was too noisy to decide. Its notes
        say more.
    config_list : list of dict
        Sparsity and bits of each layer.
    model : object
        The network, cut and with its quantizer attached; if an earlier run in this folder produced the best
        file, that file, which is called like the network.
    history : list of dict
        Every file that was the best so far: ``what``, ``metric``, ``costs``, ``is_met``.
    export : dict
        How the file was written and the results of its check, as plain data.
    """

    path: Path
    receipt: Receipt
    verdict: str
    config_list: list[dict[str, Any]]
    model: Any
    history: list[dict[str, Any]] = field(default_factory=list)
    export: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_met(self) -> bool:
        """Whether the file was shown to meet every budget."""
        return self.verdict == MET

    def __str__(self) -> str:
        said = {MET: "met", NOT_SHOWN: "NOT SHOWN to be met"}.get(self.verdict, "NOT met")
        return f"{self.receipt}\nthe budget is {said}; the file is {self.path}"


def compress(
    model: Any,
    *,
    budget: Mapping[str, Any],
    data: Any,
    evaluate: Callable[[Any], Any],
    folder: str | os.PathLike[str] = "compressed",
    example_inputs: Any = None,
    config_list: Any = None,
    target: str = "onnxruntime",
    epochs: int = 10,
    hours: float | None = None,
    trials: int = 8,
    networks: int = NETWORKS,
    seed: int = 0,
    export_options: Mapping[str, Any] | None = None,
) -> Compressed:
    """Make a model meet a budget, and write it as a file.

    The first file is written early: the model in 8 bits. Then channels are selected and cut until the
    budget is met; accuracy is recovered without training, and then by training, with the original as
    teacher, so that no labels are needed. Each better file replaces the previous one. Ctrl-C keeps the best
    so far.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        The trained model; it is never changed.
    budget : dict
        See :class:`~lilliput.search.search.Search`, such as ``{"latency": 0.5, "drop": 0.005}``.
    data : iterable, or callable that returns one
        The batches to train on, ``(inputs, targets)`` or inputs; they are iterated over several times,
        so pass a function that creates the generator instead of a generator. Targets are not used.
    evaluate : callable
        ``evaluate(model)`` returns the metric, where higher is better; it is called with models and files.
    folder : path
        The folder for the file, its receipt, the report and the journal of the search. A killed run
        resumes the search, and its best file stays until there is a better
        one; training starts over. The batches must be the same, so seed a loader that shuffles.
    example_inputs : optional
        Inputs of the model, with at least two examples; by default the inputs of the first batch.
        The latency is that of these inputs, all at once.
    config_list : list of dict, optional
        Rules with choices; by default eight bits for all layers, and up to three quarters of the channels
        removed in steps of an eighth.
    target : str
        The runtime.
    epochs : int
        Maximum number of training epochs, 0 for none; otherwise, with ``hours``, as many as the time allows.
    hours : float, optional
        The time limit; at most half of it is used for trials. After that, only steps that produce a
        file are started: work in progress is finished (the first file, the sensitivities, timing a network, a
        trial, an epoch), a network that was found or trained is written and evaluated, and the best file
        is timed for its receipt.
    trials, networks, seed, export_options
        See :class:`~lilliput.search.search.Search`.
    """
    end, limits = _check_time(hours, epochs), parse_budget(budget)
    batches = list(islice(again(data), _BATCHES))
    if not batches:
        raise ConfigError("data: received no batches, expected some.")
    inputs = _first_inputs(batches[0]) if example_inputs is None else example_inputs
    if example_inputs is None and 0 in getattr(inputs, "shape", ()):
        raise ConfigError("data: the first batch has no examples, expected at least two.")
    search = Search(
        model,
        list(DEFAULT_RULES) if config_list is None else config_list,
        budget={name: value for name, value in budget.items() if name != "drop"},
        evaluate=evaluate,
        data=batches,
        example_inputs=inputs,
        target=target,
        trials=trials,
        networks=networks,
        seed=seed,
        export_options=export_options,
    )
    place = make_folder(folder)
    work = _Work(search, limits["drop"].value if "drop" in limits else None, place)
    if end is not None:
        work.task.deadline = time.monotonic() + _SHARE_FOR_SEARCH * (end - time.monotonic())
    try:
        work.offer_quantized()
        work.task.end = end  # from now on there is a file to end with
        choice = work.offer_found()
        is_late = end is not None and time.monotonic() > end
        if epochs and not work.is_done and not is_late:
            _train(work, choice, data, epochs, end, seed)
    except OutOfTimeError:
        log.warning("time is up; keeping the best file so far.")
    except KeyboardInterrupt:
        if work.best is None:
            raise
        log.warning("interrupted; keeping the best file so far.")
    return work.finish()


class _Work:
    """The best file so far."""

    def __init__(self, search: Search, drop: float | None, folder: Path) -> None:
        self.search, self.folder, self.drop = search, folder, drop
        self.task: Task = search.start(folder)
        self.path = folder / f"model{search.target.suffix}"
        self.original = self.task.maker.write_original(folder, self.task.journal)
        self.best: tuple[float, float] | None = None  # excess over the budget, minus the metric
        self.kept: tuple[Any, Trial] | None = None  # the network and its trial
        self.history: list[dict[str, Any]] = []
        self.export: dict[str, Any] = {}
        self.cpu_notes: list[str] = []  # which processors the best file is for
        self.points: list[dict[str, Any]] = []
        self._take_up()

    def _take_up(self) -> None:
        """Make the file of an earlier run the best so far, if it matches the journal."""
        for left in self.folder.glob(f"{_NEXT}*"):  # by a killed run
            shutil.rmtree(left, ignore_errors=True)
        held = self.task.journal.get("best")
        found = digests_of_files(self.folder, self.path.stem)
        if held is None or not held["files"].items() <= found.items():
            return
        trial = Trial(tuple(held["choice"]), held["costs"], held["metric"])
        self.best = (self._over(trial.costs, trial.metric), -trial.metric)
        self.kept, self.history = (open_file(self.path), trial), held["history"]
        self.export = held.get("export", {})
        self.cpu_notes = held.get("cpu_notes", [])
        log.info("the best file of the earlier run: metric %.4g", trial.metric)

    @property
    def is_done(self) -> bool:
        """Whether the best file meets the whole budget, according to the measurements of the search."""
        return self.best is not None and self.best[0] <= 0

    def offer_quantized(self) -> None:
        """Write the mildest network, which is only quantized if the rules allow it, as the first file."""
        mildest = (0,) * len(self.task.space.decisions)
        costs = self.task.measure(mildest)
        self.offer("without pruning", mildest, self.task.candidate(mildest), costs)

    def offer_found(self) -> Any:
        """Search, write the result, and return the choice."""
        try:
            best: Trial = self.search.run_strategy(self.task)
        except AlgorithmError as error:
            raise AlgorithmError(
                f"{error} The best file without pruning is {self.path}."
            ) from error
        self.offer("found by the search", best.choice, self.task.candidate(best.choice), best.costs)
        return best.choice

    def offer(self, what: str, choice: Any, candidate: Candidate, costs: dict[str, float]) -> bool:
        """Write a network if it is better than the best so far."""
        # Under its final name, because some files contain the name of their weights file.
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=_NEXT) as folder:
            path = Path(folder, self.path.name)
            written = self.task.maker.write(candidate, path, check=True)
            size = int(written.bytes)
            metric = evaluated(self.search.evaluate, open_file(path), f"the file {what}")
            costs = {**costs, **({"bytes": float(size)} if "bytes" in costs else {})}
            over = self._over(costs, metric)
            self.points.append({"name": what, "metric": metric, "bytes": size})
            log.info("%s: metric %.4g (original %.4g)", what, metric, self.task.baseline)
            is_better = self.best is None or (over, -metric) < self.best
            if is_better:
                trial = Trial(choice, costs, metric)
                self.best, self.kept = (over, -metric), (candidate.model, trial)
                entry = {"what": what, "metric": metric, "costs": costs, "is_met": over <= 0}
                self.history.append(entry)
                self.export = written.to_dict() | {"path": self.path.name}
                self.cpu_notes = cpu_lines(written)
                self._replace(path.parent, trial)
        return is_better

    def _replace(self, folder: Path, trial: Trial) -> None:
        """Move all files of the best network to their final place, and record their origin."""
        found = digests_of_files(folder, self.path.stem)
        for name in sorted(found, key=lambda name: name == self.path.name):  # the main file last
            os.replace(folder / name, self.folder / name)
        known: dict[str, Any] = {
            "choice": trial.choice,
            "costs": trial.costs,
            "metric": trial.metric,
        }
        known |= {"files": found, "history": self.history, "export": self.export}
        known["cpu_notes"] = self.cpu_notes
        self.task.journal.note("best", known)
        write_atomically(self.folder / "history.json", json.dumps(self.history, indent=1).encode())

    def _over(self, costs: dict[str, float], metric: float) -> float:
        """Return the sum of the relative excesses over budgets."""
        over = sum(max(value / bound - 1, 0.0) for _, value, bound in self.task.compared(costs))
        if self.drop is None:
            return over
        lost = self.task.baseline - metric - self.drop
        return over + max(lost, 0.0) / max(abs(self.task.baseline), 1e-12)

    def finish(self) -> Compressed:
        """Take the receipt, and write it and the report."""
        if self.kept is None:
            raise AlgorithmError("nothing was written; this is a bug in Lilliput.")
        model, trial = self.kept
        before, after = measure_all(
            [self.original, self.path],
            self.search.space.example_inputs,
            names=["original", "compressed"],
        )
        before = replace(before, metric=self.task.baseline)
        after = replace(after, metric=trial.metric)
        verdict = judge(self.task, trial.costs, before, after, self.drop)
        receipt = take_receipt(before, after, notes=(*verdict.notes, *self.cpu_notes))
        receipt.save(self.folder / "receipt.json")
        rules = self.search.space.config_list(trial.choice)
        write_atomically(self.folder / "found.json", json.dumps(rules, indent=1).encode())
        write_report(self.task, trial, receipt, self.folder, self.points)
        found = (self.path, receipt, verdict.word, rules)
        return Compressed(*found, model, self.history, self.export)


def _train(work: _Work, choice: Any, data: Any, epochs: int, end: float | None, seed: int) -> None:
    """Train the network of a choice, and offer it at intervals."""
    space, costs = work.search.space, work.task.measure(choice)

    def offer(what: str, candidate: Candidate) -> bool:
        work.offer(what, choice, candidate, costs)
        return work.is_done and end is None

    recovery = Recovery(work.task.maker.order(choice), space.backend.name, data, seed)
    recovery.run(epochs, end, _has_classes(space), offer)


def _has_classes(space: Any) -> bool:
    """Whether the model returns one row of classes per example."""
    outputs: list[Any] = []
    backend = space.backend
    feed = backend.feeder(space.example_inputs)
    inputs = space.example_inputs
    batch = inputs if not isinstance(inputs, (tuple, list)) else (tuple(inputs), None)
    backend.run(space.model, [batch], lambda model, batch: outputs.append(feed(model, batch)))
    return backend.sampled_loss(outputs[0], 0) is not None


def _first_inputs(batch: Any) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _check_time(hours: Any, epochs: Any) -> float | None:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise ConfigError(f"epochs: received {epochs!r}, expected an integer from 0.")
    if hours is None:
        return None
    is_number = isinstance(hours, (int, float)) and not isinstance(hours, bool)
    if not is_number or not 0 < hours < math.inf:
        raise ConfigError(f"hours: received {hours!r}, expected a number above 0.")
    return time.monotonic() + 3600 * float(hours)
