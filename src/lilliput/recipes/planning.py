"""The dry run: what a recipe would do to which layers, and its approximate duration."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import ConfigError, Problem, StageError
from lilliput.frameworks import backend_of
from lilliput.frameworks.looping import Epoch
from lilliput.recipes.arguments import algorithm_of, make_compressor
from lilliput.recipes.functions import find_functions
from lilliput.recipes.goals import GOALS, forecast, make_search
from lilliput.recipes.load import load_recipe
from lilliput.recipes.references import importable
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import FOUND, FactorizeStep, epochs_of
from lilliput.recipes.steps import evaluate
from lilliput.recipes.teaching import make_distiller
from lilliput.recipes.units import title_of, units_of

if TYPE_CHECKING:
    from lilliput.recipes.session import Session


@dataclass(frozen=True)
class PlannedStep:
    """One step: its layers by rule, and its seconds of training or trials, if known."""

    title: str
    epochs: int = 0
    rules: dict[int | str, list[str]] = field(default_factory=dict)
    seconds: float | None = None
    trials: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run would do; ``print`` shows it.

    Attributes
    ----------
    steps : list of PlannedStep
        In order.
    units : int
        Units of work, after each of which a run can be killed and continued.
    seconds : float or None
        Training and evaluation, based on the time of one batch here.
    memory : int or None
        Peak memory of this process in bytes, with one batch trained.
    notes : list of str
        What the figures do not include.
    """

    steps: list[PlannedStep]
    units: int
    seconds: float | None
    memory: int | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} steps, {self.units} units of work"]
        for number, step in enumerate(self.steps, 1):
            plural = "s" if step.epochs > 1 else ""
            epochs = f", {step.epochs} epoch{plural}" if step.epochs else ""
            epochs += f", at most {step.trials} trials" if step.trials else ""
            time_ = "" if step.seconds is None else f", about {_duration(step.seconds)}"
            lines.append(f"  {number}. {step.title}{epochs}{time_}")
            for rule, names in step.rules.items():
                label = f"rule {rule}" if isinstance(rule, int) else rule
                lines.append(f"     {label}: {_some(names)}")
        if self.seconds is not None:
            lines.append(f"about {_duration(self.seconds)} of training and evaluation here")
        if self.memory is not None:
            lines.append(f"about {self.memory / 1e6:,.0f} MB of memory")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan(recipe: str | os.PathLike[str] | dict[str, Any] | Recipe, *, trust: bool = False) -> Plan:
    """Validate a recipe with its model and data, and estimate its costs; nothing is written.

    Parameters
    ----------
    recipe : path, dict or Recipe
        The recipe; see :func:`load_recipe`.
    trust : bool
        As in :func:`run`.

    Raises
    ------
    ConfigError
        With all problems: missing functions, rules that match no layer.
    """
    from lilliput.recipes.opening import start

    asked = load_recipe(recipe)
    with (
        tempfile.TemporaryDirectory() as folder,
        importable([asked.folder, Path.cwd()]),
    ):
        session = start(asked, Path(folder), find_functions(asked), trust)
        layers = check_model(session)
        goals = {
            index: forecast(session, index, partial(evaluate, session))
            for index, step in enumerate(asked.steps)
            if step.verb in GOALS
        }
        batch, count, notes = _time(session)
    if any(step.verb == "auto" for step in asked.steps):
        notes.append(
            "in addition, auto trains until its budget is met or its epochs or hours are used up"
        )
    steps = [
        PlannedStep(
            title_of(step),
            epochs := epochs_of(step),
            goals[index].layers if index in goals else layers.get(index, {}),
            goals[index].seconds if index in goals else _training(batch, count, epochs),
            goals[index].trials if index in goals else 0,
        )
        for index, step in enumerate(asked.steps)
    ]
    known = [step.seconds for step in steps if step.epochs or step.trials]
    evaluations = _evaluation_seconds(session)
    total = None if None in known else sum(x or 0 for x in known) + evaluations
    return Plan(steps, len(units_of(asked)) + 1, total, peak_memory(), notes)


def check_model(session: Session) -> dict[int, dict[int | str, list[str]]]:
    """Return the layers that the rules of each step select, or raise with all problems."""
    model = session.model
    try:
        return _check_steps(session)
    finally:
        session.model = model


def _check_steps(session: Session) -> dict[int, dict[int | str, list[str]]]:
    """Do the work of :func:`check_model`; factorize steps replace the session's model."""
    problems: list[Problem] = []
    found: dict[int, dict[int | str, list[str]]] = {}
    needs_loss = session.recipe.needs_loss
    missing = session.framework.check_training(session.functions) if needs_loss else ""
    if missing:
        problems.append(Problem("", f"{missing}."))
    for index, step in enumerate(session.recipe.steps):
        try:
            made = [make_distiller(session, index)]
            if step.verb in GOALS:
                make_search(session, step, partial(evaluate, session))
            if getattr(step, "config", None) == FOUND:
                continue  # the result of the search, validated then
            if step.verb in ("prune", "quantize"):
                made = [make_compressor(step, session.model, session.inputs)]
            if isinstance(step, FactorizeStep):
                made = [_factorize(session, index, step)]
        except ConfigError as error:
            problems += [Problem(f"step {index + 1} → {x.path}", x.message) for x in error.problems]
            continue
        if step.verb in ("prune", "quantize", "distill", "factorize"):
            found[index] = _layers_by_rule(made[0])
    if problems:
        raise ConfigError(problems, title="recipe")
    return found


def _factorize(session: Session, index: int, step: FactorizeStep) -> Any:
    """Return the factorizer of a step, after replacing the layers of a copy of the session's model."""
    session.model = _copy_to_factorize(session)
    made = algorithm_of("factorize", step.factorize)(session.model, step.config)
    is_last = not any(x.verb == step.verb for x in session.recipe.steps[index + 1 :])
    if is_last:
        made.lay_out()
    else:  # the ranks of a later step may depend on the weights of this one
        made.compress()
    if not made.result.ranks:
        why = f"replaces no layer. {made.result.why_left()}. Choose a lower rank."
        raise ConfigError([Problem("factorize", why)])
    return made


def _copy_to_factorize(session: Session) -> Any:
    """Return a copy of the session's model, or raise if its rules would match other layers."""
    if session.compressors:
        raise ConfigError(
            [
                Problem(
                    "factorize",
                    "the run that it starts from has pruners or quantizers attached; expected a model "
                    "without any. Factorize before them, or cut the pruned channels out by a speedup step.",
                )
            ]
        )
    return backend_of(session.model).copy_model(session.model)


def _layers_by_rule(compressor: Any) -> dict[int | str, list[str]]:
    rules: dict[int | str, list[str]] = {}
    try:
        decisions = compressor.selection.decisions
    except StageError:  # an algorithm that changes the model first is bound later
        return rules
    for decision in decisions:
        if decision.is_chosen:
            key = "by default" if decision.rule is None else decision.rule
            rules.setdefault(key, []).append(decision.layer.name)
    return rules


def _training(batch: float | None, count: int | None, epochs: int) -> float | None:
    return None if batch is None or count is None or not epochs else epochs * count * batch


def _time(session: Session) -> tuple[float | None, int | None, list[str]]:
    """Return the seconds of training one batch, the number of batches, and notes on what is unknown."""
    if session.functions.data is None:
        return None, None, []
    session.seed("data")
    batches = session.functions.batches()
    count = len(batches) if hasattr(batches, "__len__") else None
    notes = ["not included: writing, checking and measuring files"]
    if count is None:
        notes.append(
            "the number of batches of 'data' is unknown, so training time is not estimated"
        )
    if not session.recipe.needs_loss:
        return None, count, notes
    first = next(iter(batches))
    optimizer = session.framework.start_training(
        session.model, [], session.functions, session.functions.optimizer, None
    )
    seconds = 0.0
    for _ in range(2):  # the first time is slower
        start = time.perf_counter()
        session.framework.train(Epoch(session.model, optimizer, [first], session.functions))
        seconds = time.perf_counter() - start
    return seconds, count, notes


def _evaluation_seconds(session: Session) -> float:
    if session.functions.evaluate is None:
        return 0.0
    session.framework.evaluation_mode(session.model)
    start = time.perf_counter()
    session.functions.evaluate(session.model)
    seconds = time.perf_counter() - start
    return seconds * sum(unit.kind in ("baseline", "measure") for unit in session.units)


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes, or None if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    count = "1 layer" if len(listed) == 1 else f"{len(listed)} layers"
    return f"{count}: {', '.join(listed[:6])}{more}"
