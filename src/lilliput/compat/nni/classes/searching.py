"""NNI's ``NetAdaptPruner`` and ``SimulatedAnnealingPruner``: find a sparsity for each layer, then prune."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner, SecondStackPruner
from lilliput.compat.nni.classes.arguments import Unknown
from lilliput.compat.nni.classes.cutting import CutsInTheEnd
from lilliput.compat.nni.classes.mask_search import MaskSpace, MaskTask, Rules, measured_masks
from lilliput.compat.nni.classes.training import training_mode
from lilliput.errors import ConfigError, nearest
from lilliput.extras import require
from lilliput.files import make_folder, write_atomically
from lilliput.progress import quiet
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import pruners
from lilliput.search.candidate import evaluated
from lilliput.search.solve import Choice
from lilliput.search.strategies import annealing, netadapt
from lilliput.search.task import Trial

BASES = ("level", "l1", "l2", "fpgm")
_MODES = {"maximize": 1.0, "minimize": -1.0}
_HERE = (None, ".", "./")
_NO_LIMIT = 10**6  # of trials: NetAdapt ends when the budget is met


class FirstStage(AdaptedPruner, OneShotPruner):
    """A base algorithm at given sparsities, in the form of the first stack."""


class SecondStage(SecondStackPruner, OneShotPruner):
    """A base algorithm at given sparsities, in the form of the second stack."""


class Searching(AdaptedPruner, OneShotPruner):
    """Search first: each trial prunes the model in place, and restores it."""

    stage_type: type[Any] = FirstStage
    is_shared = True  # a plain sparsity is that of all layers together
    goes_on = False  # whether a trial starts from the weights trained by a milder one
    scorer: Any = None
    tuner: Any = None
    sign = 1.0
    folder: Any = None
    found: Trial | None = None
    space: MaskSpace

    # -- the constructor ---------------------------------------------------------------------------------

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return False  # now a strategy of Search

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        title = type(self).__name__
        mode = given.pop("optimize_mode", None) or "maximize"
        self.sign = (
            1.0 if isinstance(mode, Unknown) else _chosen(title, "optimize_mode", mode, _MODES)
        )
        first, second = given.pop("base_algo", None), given.pop("pruning_algorithm", None)
        self.masker_type = base_masker(title, first or second or "level")
        if given.pop("pruning_params", None):
            raise ConfigError(
                f"{title}: pruning_params is not available here: {', '.join(BASES)} take none."
            )
        self.folder = given.pop("experiment_data_dir", None)
        self.scorer = given.pop("evaluator", None)
        if self.scorer is None:
            raise ConfigError(f"{title}: evaluator is missing; expected a function of the model.")
        self.tuner = given.pop("short_term_fine_tuner", None) or given.pop("finetuner", None)
        translated = super()._translated(given)
        if hasattr(self.scorer, "train") and not isinstance(self.scorer, Unknown):
            self.evaluator = self.scorer  # which trains as well; masks hold without its optimizer
        return translated

    # -- the search --------------------------------------------------------------------------------------

    def compress(self, model: Any = None) -> Any:
        """Search, prune the model by the result, and return it."""
        self._take(model)
        if self.found is None:
            self.find()
        return self.attach()

    def find(self) -> None:
        """Search; the model is unchanged, or has the weights that the best trial has trained."""
        require("scipy", f"{type(self).__name__} needs pip install 'lilliput[search]'")
        if self._wrappers is None:
            self._bind()
        self._kept: dict[Choice, tuple[Choice | None, float, Any]] = {}
        self.space = self._make_space()
        before = self._backend.remember(self.bound_model)
        try:
            task = self._make_task()
            self.found = self._search(task)
        finally:
            before.restore()
        if self._tunes:
            self._kept[self.found.choice][2].restore()
        before.restore_modes()
        self._kept = {}
        self.config_list = self.space.config_list(self.found.choice)
        self._write(task)
        self._wrappers = None
        self._bind()

    def _search(self, task: MaskTask) -> Trial:
        raise NotImplementedError

    @property
    def _trials(self) -> int:
        return _NO_LIMIT

    @property
    def score(self) -> float:
        """The evaluator's score of the best trial."""
        return math.nan if self.found is None else self.sign * self.found.metric

    @property
    def _tunes(self) -> bool:
        return self.tuner is not None or self.evaluator is not None

    def _make_space(self) -> MaskSpace:
        chosen = [d for d in self.selection.decisions if d.is_chosen]
        layers = [d.layer for d in chosen]
        by_channel = self.removes_channels
        units = [x.out_channels if by_channel else math.prod(x.shape) for x in layers]
        return MaskSpace(layers, [d.rule or 0 for d in chosen], self.is_shared, units)

    def _make_task(self) -> MaskTask:
        weights = {
            w.name: float((w.weight.detach() ** 2).sum()) for w in self.get_modules_wrapper()
        }

        def masks_of(rules: Rules) -> dict[str, tuple[float, float]]:
            found = {}
            with self._pruned(rules) as stage:
                for w in stage:
                    kept = float(((w.weight.detach() * w.weight_mask) ** 2).sum())
                    whole = weights[w.name]
                    found[w.name] = float(w.weight_mask.sum()), 1 - kept / whole if whole else 0.0
            return found

        left, lost = measured_masks(self.space, masks_of)

        def baseline() -> float:
            return self._score("the original model")

        return MaskTask(self.space, left, lost, baseline, self._tried, self._trials)

    @contextmanager
    def _pruned(self, rules: Rules, then: Callable[[Any], Any] = lambda _: None) -> Iterator[Any]:
        """Prune within the context; ``then`` receives the state of the model."""
        model, remember = self.bound_model, self._backend.remember
        before, stage = remember(model), None
        try:
            with quiet():
                stage = self.stage_type(model, rules, masker_type=self.masker_type)
                stage.attach()
            yield stage.get_modules_wrapper()
            with quiet():
                stage.strip()
            then(remember(model))
        finally:
            if stage is not None and stage.is_wrapped:
                with quiet():
                    stage.strip()
            before.restore()

    def _tried(self, choice: Choice) -> float:
        """Prune, fine-tune if requested, and return the metric."""
        milder = [x for x in self._kept if all(a <= b for a, b in zip(x, choice, strict=True))]
        parent = max(milder, key=sum) if self.goes_on and milder else None
        before = self._backend.remember(self.bound_model)
        if parent is not None:
            self._kept[parent][2].restore()
        trained: list[Any] = []
        try:
            with self._pruned(self.space.config_list(choice), trained.append):
                self._tune()
                metric = self._score(f"the sparsities {self._shown(choice)}")
        finally:
            before.restore()
        if self._tunes:
            self._keep(choice, parent, metric, trained[0])
        return metric

    def _keep(self, choice: Choice, parent: Choice | None, metric: float, trained: Any) -> None:
        """Keep the weights of the best trial of a round, and those that its trials start from."""
        best = next((x for x, (p, _, _) in self._kept.items() if p == parent), None)
        if best is not None and metric <= self._kept[best][1]:
            return
        of_parent = {} if parent is None else {parent: self._kept[parent]}
        self._kept = {**of_parent, choice: (parent, metric, trained)}

    def _tune(self) -> None:
        if self.tuner is not None:
            with training_mode(self.bound_model):
                self.tuner(self.bound_model)
        elif self.evaluator is not None:
            with training_mode(self.bound_model), _as_before(self.evaluator):
                self.evaluator.train(self.bound_model)

    def _shown(self, choice: Choice) -> str:
        pairs = zip(self.space.decisions, choice, strict=True)
        return ", ".join(f"{d.layers[0]}: {d.choices[i]:g}" for d, i in pairs)

    def _score(self, what: str) -> float:
        return self.sign * evaluated(self._answer, self.bound_model, what)

    def _answer(self, model: Any) -> Any:
        found = getattr(self.scorer, "evaluate", self.scorer)(model)
        return found[0] if isinstance(found, (tuple, list)) and found else found

    def _write(self, task: MaskTask) -> None:
        """Write the result and all trials, if the program specifies a folder."""
        if self.folder in _HERE:
            return
        place: Path = make_folder(self.folder)
        result = {"performance": self.score, "config_list": self.config_list}
        write_atomically(place / "search_result.json", json.dumps(result, indent=1).encode())
        rows = ["performance,config_list"]
        for trial in task.tried.values():
            listed = json.dumps(self.space.config_list(trial.choice)).replace('"', '""')
            rows.append(f'{self.sign * trial.metric},"{listed}"')
        write_atomically(place / "search_history.csv", "\n".join([*rows, ""]).encode())


class NetAdaptForm(Searching):
    """Prune the least sensitive layer a little more, round by round, with a short fine-tuning after each."""

    goes_on = True
    saving: Any = 0.05

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        self.saving = given.pop("sparsity_per_iteration", self.saving)
        if not isinstance(self.saving, Unknown):
            _check_number(type(self).__name__, "sparsity_per_iteration", self.saving, 0, 1)
        return super()._translated(given)

    def _search(self, task: MaskTask) -> Trial:
        mildest = (0,) * len(self.space.decisions)
        over = sum(
            max(value - bound, 0.0) / task.whole[name]
            for name, value, bound in task.compared(task.measure(mildest))
        )
        share = min(self.saving / over, 1.0) if over else 1.0
        return netadapt.search(task, share, decay=1.0, evaluated=len(mildest))


class AnnealingForm(Searching):
    """Change sparsities at random, by decreasing amounts, and keep the best."""

    temperatures: tuple[Any, Any, Any, Any] = (100, 20, 0.9, 0.35)

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        names = (
            "start_temperature",
            "stop_temperature",
            "cool_down_rate",
            "perturbation_magnitude",
        )
        values = [given.pop(name, x) for name, x in zip(names, self.temperatures, strict=True)]
        known = {k: v for k, v in zip(names, values, strict=True) if not isinstance(v, Unknown)}
        for name, value in known.items():
            _check_number(type(self).__name__, name, value, 0, math.inf if "temp" in name else 1)
        self.temperatures = (values[0], values[1], values[2], values[3])
        return super()._translated(given)

    @property
    def _trials(self) -> int:
        hottest, coldest, cooling, _ = self.temperatures
        steps = math.ceil(math.log(coldest / hottest) / math.log(cooling)) if cooling < 1 else 0
        return max(steps, 0) + 2  # plus the two initial ones

    def _search(self, task: MaskTask) -> Trial:
        alike = self.space.alike()
        if task.keeps(task.measure(alike)):
            task.trial(alike)  # so that the result is never worse
        annealing.search(task, *self.temperatures)
        return task.best()

    def compress(self, model: Any = None, return_config_list: bool = False) -> Any:
        """As in :class:`Searching`; or return only the config list, without changing the model."""
        return self.find_rules() if return_config_list else super().compress(model)

    def find_rules(self) -> Rules:
        """Search, and return the config list; the model is not changed."""
        before = self._backend.remember(self.bound_model)
        self.find()
        before.restore()
        return list(self.config_list)


class SecondAnnealingForm(AnnealingForm, CutsInTheEnd):
    """The same in the second stack: ``total_sparsity`` is distributed, and ``speedup`` cuts at the end."""

    stage_type = SecondStage
    is_shared = False

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        self._take_cutting(given, given.get("evaluator"))
        return super()._translated(given)

    def compress(self, model: Any = None) -> Any:  # type: ignore[override]
        """Search, prune, and return the model and its masks, which are empty if they are cut out."""
        AnnealingForm.compress(self, model)
        if self.cuts and self.is_wrapped:
            self._cut_out()
        return self.bound_model, self.get_masks()

    def get_best_result(self) -> tuple[Any, ...]:
        """Return ``(task, model, masks, score, config_list)`` of the best trial."""
        return 0, self.bound_model, self.get_masks(), self.score, self.config_list


def base_masker(title: str, name: Any) -> Any:
    """Return the criterion of a base algorithm; any, if a program is only read."""
    if isinstance(name, Unknown):
        name = "level"
    if name not in BASES:
        raise ConfigError(
            f"{title}: received {name!r} as the algorithm that prunes, expected one that uses only "
            f"weights: {', '.join(BASES)}.{nearest(name, BASES)}"
        )
    return pruners.get(name).masker_type


def _chosen(title: str, name: str, value: Any, known: Mapping[str, float]) -> float:
    if value not in known:
        raise ConfigError(f"{title}: {name}: received {value!r}, expected {' or '.join(known)}.")
    return known[value]


def _check_number(title: str, name: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least < value < most:
        raise ConfigError(
            f"{title}: {name}: received {value!r}, expected a number above {least}"
            + ("." if math.isinf(most) else f" and below {most}.")
        )


@contextmanager
def _as_before(evaluator: Any) -> Iterator[None]:
    """Restore the optimizer of an evaluator and its schedulers, so that all trials start equally."""
    listed = getattr(evaluator, "lr_schedulers", None)
    schedulers = list(listed) if isinstance(listed, (list, tuple)) else [listed]
    parts = [x for x in (evaluator.optimizer, *schedulers) if x is not None]
    held = [copy.deepcopy(part.state_dict()) for part in parts]
    try:
        yield
    finally:
        for part, state in zip(parts, held, strict=True):
            part.load_state_dict(state)
