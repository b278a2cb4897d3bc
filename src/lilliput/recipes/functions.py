"""The user's functions that a recipe names, resolved before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.calling import call
from lilliput.errors import ConfigError, Problem
from lilliput.recipes.references import resolve_function
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import LOSSES, ORIGINAL, is_reference, teacher_of, training_of

Function = Callable[..., Any]


@dataclass(frozen=True)
class Functions:
    """The user's functions; ``loss`` may be the name of a common one."""

    factory: Function | None = None
    data: Function | None = None
    train: Function | None = None
    loss: Function | str | None = None
    optimizer: Function | None = None
    evaluate: Function | None = None
    inputs: Function | None = None
    step_optimizers: Mapping[int, Function] | None = None
    teachers: Mapping[int, Function] | None = None

    def batches(self, epoch: int = 0) -> Any:
        """Return new batches for an epoch."""
        if self.data is None:
            raise ConfigError("'data' is missing from the recipe; this step needs it.")
        return call(self.data, epoch=epoch)

    def optimizer_of(self, step: int) -> Function | None:
        """Return the function that creates the optimizer of a step; None for the default one."""
        return (self.step_optimizers or {}).get(step, self.optimizer)


def find_functions(recipe: Recipe) -> Functions:
    """Return all functions that a recipe names, or raise with all problems."""
    problems: list[Problem] = []
    folders = [recipe.folder]

    def find(text: str | None, what: str) -> Any:
        if text is None:
            return None
        try:
            return resolve_function(text, what, folders)
        except ConfigError as error:
            problems.extend(error.problems)
            return None

    loss = recipe.loss if recipe.loss in LOSSES else find(recipe.loss, "loss")
    factory = recipe.model if earlier_run(recipe) is None else None
    optimizers = {
        index: find(text, f"step {index + 1} → optimizer")
        for index, step in enumerate(recipe.steps)
        if (text := getattr(training_of(step), "optimizer", None)) is not None
    }
    teachers = {
        index: find(text, f"step {index + 1} → teacher")
        for index, step in enumerate(recipe.steps)
        if (text := teacher_of(step)) not in (None, ORIGINAL)
    }
    found = Functions(
        find(factory, "model"),
        find(recipe.data, "data"),
        find(recipe.train, "train"),
        loss,
        find(recipe.optimizer, "optimizer"),
        find(recipe.evaluate, "evaluate"),
        find(recipe.inputs, "inputs"),
        optimizers,
        teachers,
    )
    if problems:
        raise ConfigError(problems, title="recipe")
    return found


def earlier_run(recipe: Recipe) -> Path | None:
    """Return the folder of the run that a recipe starts from, or None if it names a factory."""
    found = find_run(recipe.model, recipe.folder)
    if found is None and not is_reference(recipe.model):
        raise ConfigError(f"model: {about_model(recipe.model)}")
    return found


def find_run(model: str, folder: Path) -> Path | None:
    """Return the folder of a run named by a string, next to the recipe or in the working directory."""
    for place in (folder / model, Path.cwd() / model):
        try:
            if (place / "run.json").is_file():
                return place
        except (OSError, ValueError):  # not a valid path: too long, or with a zero byte
            continue
    return None


def about_model(text: str) -> str:
    """Return the problem of a model that is neither a reference nor a run."""
    return (
        f"received {text!r}, expected module:factory, or the folder of an earlier run (with its "
        "run.json); there is no such folder."
    )
