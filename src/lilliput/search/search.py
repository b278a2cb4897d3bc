"""Search: state the goal, and get the config list that meets it.

>>> import tempfile, torch
>>> _ = torch.manual_seed(0)
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
>>> x = torch.randn(64, 8)
>>> wanted = model(x).argmax(1)
>>> def agreement(model):
...     return float((model(x).argmax(1) == wanted).float().mean())
>>> rules = [{"op_types": ["Linear"], "sparsity": {"choose": [0, 0.25, 0.5]}}]
>>> search = Search(model, rules, budget={"macs": 0.8}, evaluate=agreement, data=[x], example_inputs=x)
>>> with tempfile.TemporaryDirectory() as folder:
...     found = search.run(folder)
>>> found.config_list
[{'op_names': ['0'], 'sparsity': 0.25}]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lilliput.core.checks import checked_choice
from lilliput.errors import ConfigError
from lilliput.export.summary import cpu_lines
from lilliput.export.targets.executed import open_file
from lilliput.extras import require
from lilliput.files import make_folder, write_atomically
from lilliput.frameworks import backend_of
from lilliput.measure.receipt import Receipt, take_receipt
from lilliput.pruning.sensitivity_files import fingerprint
from lilliput.report.measure import measure_all
from lilliput.search.budget import parse_budget
from lilliput.search.candidate import RECOVERIES, Maker, check_export_options, evaluated, target_of
from lilliput.search.checked_data import checked_batches
from lilliput.search.costs import Counts
from lilliput.search.executors import check_executor
from lilliput.search.journal import Journal
from lilliput.search.origin import digest_of_function, digest_of_values
from lilliput.search.report import write_report
from lilliput.search.result import Found, explain, pareto
from lilliput.search.space import Space
from lilliput.search.strategies.table import strategy_named
from lilliput.search.task import Task, Trial
from lilliput.search.timing import Clock, check_clock
from lilliput.search.verdict import judge

_OPTIONS: dict[str, dict[str, Any]] = {  # of the quantizer
    "torch": {"weights": "mse", "bias_correction": "quick"},
    "keras": {"weights": "mse"},
}
NETWORKS = 12  # to time for the latency table
_SWEEP = 5  # looser budgets that are tried when the drop cannot be kept


class Search:
    """Choose sparsities and bits for all layers under a budget.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        The trained model; it is never changed.
    config_list : list of dict, or path of a YAML or JSON file
        Rules of the ordinary config language in which ``sparsity`` and ``quant_bits`` may be
        ``{"choose": [...]}``; None among bits leaves a layer in floating point.
    budget : dict
        Some of ``latency`` (a share of the original's, or a string such as ``"12 ms"``; in the target
        runtime, on this machine, at the batch of the example inputs), ``bytes`` (of the file), ``macs``,
        ``params``, ``average_bits`` (of the weights whose bits are chosen) and ``drop`` (of the metric).
    evaluate : callable
        ``evaluate(model)`` returns the metric, where higher is better. It is called with copies of the
        model in eval mode, and with the executed file at the end; Keras models are not compiled: call
        ``model(x)`` or ``predict``.
    data : iterable
        A few batches like those the model will see, with or without labels: sensitivities, recovery and
        calibration use their inputs. They are kept in memory.
    example_inputs : tensor, tuple or dict
        Inputs of the model, with a batch of at least two.
    target : str
        The runtime: ``"onnxruntime"``; ``"openvino"`` or ``"executorch"`` for torch models, ``"litert"``
        for Keras models.
    strategy : str
        How to search: ``"knapsack"`` (exact by scores, then exchanges), ``"evolution"`` (level
        switches), ``"netadapt"`` (step by step to the budget), ``"annealing"``, or ``"bayes"`` (Optuna).
    pruner, quantizer : str
        Names of the pruner, which removes channels by their weights, and of the quantizer.
    recover : str
        How to recover accuracy lost by pruning without training: ``"reconstruct"``, ``"recalibrate"``,
        ``"none"``, or ``"auto"``: the first of them that works on the model. Keras models are not
        reconstructed.
    quantizer_options : dict, optional
        Keyword arguments of the quantizer; ``{"weights": "mse"}`` by default, for torch models with
        ``"bias_correction": "quick"``.
    export_options : dict, optional
        Keyword arguments of the exporter, such as ``{"assume_vnni": False}`` if CPUs without VNNI will run
        the file.
    trials : int
        The largest number of config lists to evaluate.
    networks : int
        The number of networks to time for the latency table, if there is a latency budget.
    tables : path, optional
        The folder of latency tables, to share them between searches; by default that of the run.
    seed : int
        Seed of all random choices.
    executor : concurrent.futures.Executor, optional
        Evaluates several trials at a time: any executor of PEP 3148, such as a
        ``ProcessPoolExecutor`` or Dask's ``Client.get_executor()``. Model, data and ``evaluate`` must be
        picklable. The resulting config list does not depend on it.
    """

    def __init__(
        self,
        model: Any,
        config_list: Any,
        *,
        budget: Mapping[str, Any],
        evaluate: Callable[[Any], Any],
        data: Iterable[Any],
        example_inputs: Any,
        target: str = "onnxruntime",
        strategy: str = "knapsack",
        pruner: str = "l1",
        quantizer: str = "ptq",
        recover: str = "auto",
        quantizer_options: Mapping[str, Any] | None = None,
        export_options: Mapping[str, Any] | None = None,
        trials: int = 20,
        networks: int = NETWORKS,
        tables: str | os.PathLike[str] | None = None,
        seed: int = 0,
        executor: Any = None,
    ) -> None:
        framework = backend_of(model).name
        require("scipy", "searching needs pip install 'lilliput[search]'")
        self.limits = parse_budget(budget)
        _check(evaluate, recover, trials, networks)
        check_executor(executor)
        self.executor = executor
        self.run_strategy, self.strategy = strategy_named(strategy), strategy
        self.target = target_of(target, framework)
        self.space = Space(model, config_list, example_inputs, pruner, quantizer)
        self.data = checked_batches(self.space, data)
        _check_bits(self.limits, self.space)
        self.evaluate, self.recover = evaluate, recover
        options = _OPTIONS[framework] if quantizer == "ptq" else {}
        self.options = dict(options) if quantizer_options is None else dict(quantizer_options)
        self.export_options = dict(export_options or {})
        check_export_options(self.export_options, self.target)
        self.trials, self.networks, self.seed = trials, networks, seed
        self.tables = None if tables is None else Path(tables)

    def run(self, folder: str | os.PathLike[str]) -> Found:
        """Search, and write the winner and the journal into a folder.

        An interrupted run, even after a power cut, is resumed: call it again with the same
        folder.
        """
        place = make_folder(folder)
        task = self.start(place)
        baseline = task.baseline
        best: Trial = self.run_strategy(task)
        drop = self.limits.get("drop")
        if drop is not None and baseline - best.metric > drop.value:
            raise task.refuse_drop(best, _nearest(task, baseline - drop.value))
        return self.finish(task, best, place)

    def start(self, folder: Path) -> Task:
        """Return the task for a strategy."""
        maker = self.maker()
        counts = Counts(self.space)
        journal = Journal(folder, self._made_from())
        clock = None
        if "latency" in self.limits:
            check_clock(self.target)
            original = maker.write_original(folder, journal)
            clock = Clock(maker, counts, original, make_folder(self.tables or folder))
        return Task(
            maker,
            counts,
            self.limits,
            self.evaluate,
            journal,
            clock,
            self.networks,
            self.trials,
            self.seed,
            self.executor,
        )

    def maker(self) -> Maker:
        """Return the maker of the networks of choices."""
        return Maker(
            self.space, self.data, self.recover, self.options, self.target, self.export_options
        )

    def __repr__(self) -> str:
        listed = ", ".join(str(limit) for limit in self.limits.values())
        return f"Search({len(self.space.decisions)} decisions, {self.space.count:,} config lists; {listed})"

    def _made_from(self) -> dict[str, Any]:
        return {
            "model": fingerprint(self.space.model),
            "choices": [str(decision) for decision in self.space.decisions],
            "settings": self.space.settings,
            "pruner": [self.space.pruner, self.recover],
            "quantizer": [self.space.quantizer, self.options],
            "target": self.target.name,
            **({"export": self.export_options} if self.export_options else {}),
            "evaluate": digest_of_function(self.evaluate),
            "data": digest_of_values(self.data),
            "example_inputs": digest_of_values(self.space.example_inputs),
            "budget": sorted(self.limits),
        }

    def finish(self, task: Task, best: Trial, folder: Path) -> Found:
        """Write the winner, time it against the original, and return the result."""
        space, candidate = self.space, task.candidate(best.choice)
        original = task.maker.write_original(folder, task.journal)
        path = folder / f"model{self.target.suffix}"
        written = task.maker.write(candidate, path, check=True)
        front = [
            {"config_list": space.config_list(t.choice), "metric": t.metric, "costs": t.costs}
            for t in pareto(task.tried.values())
        ]
        lines = explain(task, best)
        write_atomically(folder / "explain.txt", "\n".join(lines).encode())
        receipt, verdict = self._receipt(task, best, original, path)
        receipt = replace(receipt, notes=(*receipt.notes, *cpu_lines(written)))
        receipt.save(folder / "receipt.json")
        write_report(task, best, receipt, folder)
        return Found(
            space.config_list(best.choice),
            space.pruning(best.choice),
            space.quantization(best.choice),
            front,
            receipt,
            candidate.model,
            path,
            verdict,
            lines,
        )

    def _receipt(self, task: Task, best: Trial, original: Path, path: Path) -> tuple[Receipt, str]:
        """Return the receipt, with a note of each budget that is not met, and the verdict."""
        before, after = measure_all(
            [original, path], self.space.example_inputs, names=["original", "found"]
        )
        file = open_file(path)
        metric = evaluated(self.evaluate, file, f"the file {path.name}")
        before, after = replace(before, metric=task.baseline), replace(after, metric=metric)
        drop = self.limits.get("drop")
        found = judge(task, best.costs, before, after, None if drop is None else drop.value)
        return take_receipt(before, after, notes=found.notes), found.word


def _nearest(task: Task, least: float) -> Trial | None:
    """Return the trial of the tightest budget, looser than requested, at which the metric is met."""
    for step in range(1, _SWEEP + 1):
        if task.is_exhausted:
            break
        trial = task.solve_measured(looser=1 + step / _SWEEP)
        if trial is not None and trial.metric >= least:
            return trial
    return None


def _check(evaluate: Any, recover: Any, trials: Any, networks: Any) -> None:
    if not callable(evaluate):
        raise ConfigError(f"evaluate: received {evaluate!r}, expected a function of the model.")
    checked_choice("recover", recover, RECOVERIES)
    for name, value in (("trials", trials), ("networks", networks)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: received {value!r}, expected an integer from 1.")


def _check_bits(limits: Mapping[str, Any], space: Space) -> None:
    if "average_bits" in limits and not any(d.key == "quant_bits" for d in space.decisions):
        raise ConfigError("budget: average_bits needs a rule with 'quant_bits' as a choice.")
