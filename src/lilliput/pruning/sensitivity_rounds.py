"""Prune round by round, each layer by the amount that a sensitivity scan allows.

This is ``SensitivityPruner`` of NNI 1.8 to 2.10, selected by passing an ``evaluator``. In each round
every layer is scanned (:class:`~lilliput.pruning.sensitivity_analysis.SensitivityAnalysis`), all layers
are pruned together in proportion to what each can lose, and the model is fine-tuned.

>>> import torch
>>> from lilliput.pruning.sensitivity import SensitivityPruner
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
>>> def evaluator(model):  # any loss of the last layer is bad, any of the first one harmless
...     return float((model[1].weight != 0).float().mean())
>>> pruner = SensitivityPruner(model, [{"sparsity": 0.5}], evaluator, base_algo="level")
>>> model = pruner.compress()
>>> [int((layer.weight == 0).sum()) for layer in model]
[40, 0]
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lilliput.config.files import read_rules
from lilliput.core.checks import checked_choice, checked_number
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.pruning.sensitivity_analysis import SensitivityAnalysis
from lilliput.pruning.sensitivity_files import (
    Curves,
    Progress,
    fingerprint,
    load_model,
    load_progress,
    read_curves,
    save,
    save_model,
)
from lilliput.pruning.sensitivity_goals import Goal, ask_for_ratios, goals_of
from lilliput.pruning.sensitivity_planned import PlannedPruner
from lilliput.pruning.sensitivity_probe import (
    call_with_model,
    masks_of,
    measure_and_restore,
    name_of,
)
from lilliput.pruning.sensitivity_shares import passing_ratio

log = logging.getLogger("lilliput")

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
STOP_MODE = {"maximize": "dropped", "minimize": "raised"}


class IterativeSensitivityPruner(PlannedPruner):
    """Prune in rounds of scan, prune and fine-tune, until each rule's sparsity is met.

    It is met to the weight with ``base_algo='level'``, and to the filter if filters are removed.

    Parameters
    ----------
    model : object
        The model.
    config_list : list of dict, or path of a YAML or JSON file
        Rules with ``sparsity`` (or ``total_sparsity``): the share to remove of all the layers of the
        rule *together*; ``max_sparsity_per_layer`` limits each of them.
    evaluator : callable
        ``evaluator(model, *eval_args, **eval_kwargs)`` returns a number. If the model is among the
        arguments (``eval_args=[model]``), it is not passed twice.
    finetuner : callable, optional
        ``finetuner(model, *finetune_args, **finetune_kwargs)`` trains the model; pruned weights stay
        zero.
    base_algo : str
        Name of the one-shot pruner to use.
    sparsity_proportion_calc : callable, optional
        ``f(sensitivities)`` or ``f(baseline, acc_drop_threshold, sensitivities)`` returns the share that
        each layer can lose, ``{layer: ratio}``. By default the sparsity at which the layer's curve
        crosses the threshold.
    sparsity_per_iter : float
        Share of the weights to remove per round, in (0, 1].
    acc_drop_threshold : float
        How much worse (absolute) the metric may get when one layer is pruned.
    checkpoint_dir : path, optional
        Every measurement and every round is stored there, and an interrupted run continues; see
        :mod:`lilliput.pruning.sensitivity_files`. The result is the same if evaluator and finetuner
        are deterministic.
    metric_mode : str
        ``'maximize'`` if larger metrics are better, ``'minimize'`` if smaller ones are.
    sparsities : sequence of float, optional
        Sparsities to scan; 0.1 to 0.9 by default.
    example_inputs : optional
        Passed to pruners that trace channels through the model. Layers whose channels are tied
        then lose the same ones, so the sparsity may be off by more than a filter.

    Attributes
    ----------
    rounds : list of dict
        For each round: ``sparsity``, ``metric_before_finetuning`` and ``metric``.
    """

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        evaluator: Callable[..., Any] | None = None,
        finetuner: Callable[..., Any] | None = None,
        base_algo: str = "l1",
        sparsity_proportion_calc: Callable[..., Mapping[str, float]] | None = None,
        sparsity_per_iter: float = 0.1,
        acc_drop_threshold: float = 0.05,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        *,
        metric_mode: str = "maximize",
        sparsities: Sequence[float] | None = None,
        example_inputs: Any = None,
    ) -> None:
        if model is None or not callable(evaluator):
            raise ConfigError(
                f"SensitivityPruner: received a {type(model).__name__} as model and {evaluator!r} as "
                "evaluator; expected a model and a function that returns its metric."
            )
        _check_settings(metric_mode, sparsity_per_iter, acc_drop_threshold)
        if isinstance(config_list, (str, os.PathLike)):
            config_list = read_rules(config_list, ["SensitivityPruner", "sensitivity"], "torch")
        self.evaluator, self.finetuner = evaluator, finetuner
        self.sparsity_proportion_calc = sparsity_proportion_calc
        self.sparsity_per_iter, self.acc_drop_threshold = sparsity_per_iter, acc_drop_threshold
        self.metric_mode = metric_mode
        self.folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        self.analyzer = SensitivityAnalysis(
            model,
            evaluator,
            sparsities,
            base_algo,
            STOP_MODE[metric_mode],
            acc_drop_threshold,
            config_list=config_list,
            example_inputs=example_inputs,
        )
        super().__init__(self.analyzer.probe, config_list)
        self.goals = goals_of(self.selection, self.removes_channels)
        self.rounds: list[dict[str, Any]] = []

    def __call__(self, model: Any = None) -> Any:
        """Compress ``model``; the form of ``compress()`` in 2019."""
        self._take(model)
        return self.compress()

    def compress(
        self,
        eval_args: Sequence[Any] | None = None,
        eval_kwargs: Mapping[str, Any] | None = None,
        finetune_args: Sequence[Any] | None = None,
        finetune_kwargs: Mapping[str, Any] | None = None,
        resume_sensitivity: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Prune the model in place and return it; if anything fails, the model is restored.

        Parameters
        ----------
        eval_args, eval_kwargs, finetune_args, finetune_kwargs
            Arguments for the evaluator and the finetuner.
        resume_sensitivity : path, optional
            A CSV of :meth:`SensitivityAnalysis.export`, or of NNI, to use instead of the first scan.
        """
        if self.is_wrapped:
            return self.bound_model
        evaluation = (eval_args or (), eval_kwargs or {})
        finetuning = (finetune_args or (), finetune_kwargs or {})
        progress = self._open_progress()
        snapshot = self._backend.remember(self.bound_model)
        super().compress()
        try:
            if progress.rounds and self.folder is not None:
                load_model(self.folder, progress, self.bound_model)
                self.put_in_force(masks_of(self))
                self.rounds = list(progress.rounds)
            while not progress.is_done:
                has_changed = self._run_round(evaluation, finetuning, resume_sensitivity)
                progress.is_done = not has_changed or not self._open_goals()
                self._keep(progress)
        except BaseException:
            self.strip()
            snapshot.restore()
            self.forget_masks()
            self.rounds = []
            raise
        snapshot.restore_modes()
        return self.bound_model

    # -- one round ---------------------------------------------------------------------------------

    def _run_round(self, evaluation: Arguments, finetuning: Arguments, resume: Any) -> bool:
        """Scan, prune and fine-tune; return whether anything was removed."""
        number, model = len(self.rounds) + 1, self.bound_model
        asked = self._plan(self._scan(number, evaluation, resume)) if self._open_goals() else {}
        if not asked:
            return False
        before = self.removed()
        sizes = {name: size for goal in self.goals for name, size in goal.sizes.items()}
        everywhere = {name: before[name] / size for name, size in sizes.items()} | asked
        with self.probe.pruned(everywhere, masks_of(self)) as base:
            masks = masks_of(base)
        self.put_in_force(masks)
        removed = self.removed()
        if removed == before:
            self._check_nothing_fits(number, asked, before)
            return False
        metric = pruned_metric = measure_and_restore(self.evaluator, model, *evaluation)
        if self.finetuner is not None:
            call_with_model(self.finetuner, model, *finetuning)
            self.put_in_force(masks)
            metric = measure_and_restore(self.evaluator, model, *evaluation)
        sparsity = sum(removed.values()) / sum(sizes.values())
        self.rounds.append(
            {"sparsity": sparsity, "metric_before_finetuning": pruned_metric, "metric": metric}
        )
        log.info(
            "round %d: sparsity %.4f, metric %.4g → %.4g", number, sparsity, pruned_metric, metric
        )
        return True

    def _scan(self, number: int, evaluation: Arguments, resume: Any) -> Curves:
        """Return the curves of the layers that are still to be pruned."""
        analyzer, removed = self.analyzer, self.removed()
        sizes = {name: size for goal in self._open_goals() for name, size in goal.sizes.items()}
        for name, size in sizes.items():
            analyzer.update_already_pruned(name, removed[name] / size)
        analyzer.masks = masks_of(self)
        if resume is not None and number == 1:
            analyzer.ori_metric = measure_and_restore(self.evaluator, self.bound_model, *evaluation)
            return _select(read_curves(resume), list(sizes), resume)
        analyzer.sensitivities = {}
        if self.folder is None:
            return analyzer.analysis(*evaluation, list(sizes))
        stem = self.folder / f"sensitivity_before_round_{number}"
        analyzer.scan_path = stem.with_suffix(".json")
        curves = analyzer.analysis(*evaluation, list(sizes))
        analyzer.export(stem.with_suffix(".csv"))
        return curves

    def _plan(self, curves: Curves) -> dict[str, float]:
        """Return the sparsities of the layers that change in this round."""
        baseline, threshold = self.analyzer.ori_metric, self.acc_drop_threshold
        calc = self.sparsity_proportion_calc
        if calc is None:
            mode = self.metric_mode
            ratios = {k: passing_ratio(x, baseline, threshold, mode) for k, x in curves.items()}
        else:
            ratios = ask_for_ratios(calc, baseline, threshold, curves)
        removed, asked = self.removed(), dict[str, float]()
        for goal in self._open_goals():
            share = goal.next_sparsities(removed, ratios, self.sparsity_per_iter)
            if not share and not goal.is_near(removed):
                smallest = self.analyzer.sparsities[0]
                why = goal.why_stuck(removed, ratios, smallest, threshold, baseline)
                raise AlgorithmError(f"round {len(self.rounds) + 1}, {why}")
            asked |= share
        return asked

    def _check_nothing_fits(
        self, number: int, asked: Mapping[str, float], removed: Mapping[str, int]
    ) -> None:
        """Raise if nothing was removed, unless less than one step is missing."""
        name = self.probe.algorithm.__name__
        for goal in self._open_goals():
            if goal.missing(removed) > goal.step(self.sparsity_per_iter):
                raise AlgorithmError(
                    f"round {number}: {name} removed nothing when requested to remove {dict(asked)}; raise "
                    "sparsity_per_iter, so that at least one whole channel is requested."
                )
        log.warning(
            "%s: because channels are removed in groups, the sparsity stays below its target.", name
        )

    def _open_goals(self) -> list[Goal]:
        removed = self.removed()
        return [goal for goal in self.goals if not goal.is_met(removed)]

    # -- files -------------------------------------------------------------------------------------

    def _open_progress(self) -> Progress:
        if self.folder is None:
            return Progress(made_from={})
        names = {k: name_of(getattr(self, k)) for k in ("evaluator", "finetuner")}
        settings = ("sparsity_per_iter", "acc_drop_threshold", "metric_mode")
        return load_progress(
            self.folder / "progress.json",
            {
                "weights": fingerprint(self.bound_model),
                "config": {x.name: x.config for x in self.selection.chosen},
                "base_algo": self.analyzer.prune_type,
                "sparsities": self.analyzer.sparsities,
                "sparsity_proportion_calc": name_of(self.sparsity_proportion_calc),
                **{name: getattr(self, name) for name in settings},
                **names,
            },
        )

    def _keep(self, progress: Progress) -> None:
        """Write the model first, then the progress that refers to it."""
        if self.folder is None:
            return
        name = f"weights_and_masks_after_round_{len(self.rounds)}.safetensors"
        progress.tensors, progress.sha256 = save_model(self.folder / name, self.bound_model)
        progress.rounds = [{k: _or_none(x) for k, x in entry.items()} for entry in self.rounds]
        save(self.folder / "progress.json", progress)


def _check_settings(metric_mode: str, sparsity_per_iter: float, acc_drop_threshold: float) -> None:
    checked_choice("metric_mode", metric_mode, STOP_MODE)
    checked_number("sparsity_per_iter", sparsity_per_iter, "(0, 1]", lambda x: 0 < x <= 1)
    checked_number("acc_drop_threshold", acc_drop_threshold, "0 or more", lambda x: x >= 0)


def _or_none(metric: float) -> float | None:
    return metric if math.isfinite(metric) else None


def _select(curves: Curves, layers: Sequence[str], path: Any) -> Curves:
    missing = [name for name in layers if not curves.get(name)]
    if missing:
        raise ConfigError(
            f"{os.fspath(path)} has no metrics for {', '.join(missing)}, which the config list selects; "
            "scan them as well, or exclude them."
        )
    return {name: curves[name] for name in layers}
