"""The units of work of a recipe: after each of them a run can be killed and resumed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from lilliput.recipes.arguments import algorithm_of
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import epochs_of

Kind = Literal[
    "baseline",
    "set up",
    "calibrate",
    "epoch",
    "factorize",
    "recover",
    "speedup",
    "export",
    "analyze",
    "search",
    "auto",
    "measure",
]


@dataclass(frozen=True)
class Unit:
    """One unit of work.

    Parameters
    ----------
    index : int
        Its position in the run, from 0.
    kind : str
        What is done.
    step : int
        The step it belongs to, -1 before the first.
    epoch : int
        For an epoch its number in the step, from 0.
    text : str
        Description for the reader.
    """

    index: int
    kind: Kind
    step: int
    epoch: int
    text: str


def units_of(recipe: Recipe) -> list[Unit]:
    """Return all units of a recipe, in order.

    Examples
    --------
    >>> steps = [{"prune": "l1", "epochs": 1}, {"speedup": {}}]
    >>> recipe = Recipe(lilliput=1, model="digits:build", data="digits:batches", steps=steps)
    >>> [unit.text for unit in units_of(recipe)]
    ['trained model: measure', 'prune (l1): set up', 'prune (l1): epoch 1 of 1', \
'prune (l1): measure', 'speedup: cut channels out', 'speedup: measure']
    """
    parts: list[tuple[Kind, int, int, str]] = [("baseline", -1, 0, "trained model: measure")]
    for number, step in enumerate(recipe.steps):
        title = title_of(step)
        for kind, epoch, text in _parts(step):
            parts.append((kind, number, epoch, f"{title}: {text}"))
    return [Unit(index, *part) for index, part in enumerate(parts)]


def title_of(step: Any) -> str:
    """Return the title of a step: ``prune (agp)``."""
    name = getattr(step, step.verb)
    return f"{step.verb} ({name})" if isinstance(name, str) else str(step.verb)


def calibrates(step: Any) -> bool:
    """Whether a step runs batches before or instead of training."""
    if step.verb not in ("prune", "quantize"):
        return False
    cls = algorithm_of(step.verb, getattr(step, step.verb))
    return hasattr(cls, "calibrate") and (step.batches is not None or not step.epochs)


def seed_for(seed: int, what: str | int) -> int:
    """Return the seed of one part of a run; all parts have different ones.

    Examples
    --------
    >>> seed_for(0, "model") != seed_for(0, 3) != seed_for(1, 3)
    True
    """
    digest = hashlib.sha256(f"lilliput {seed} {what}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _parts(step: Any) -> list[tuple[Kind, int, str]]:
    parts: list[tuple[Kind, int, str]] = []
    if step.verb in ("prune", "quantize"):
        parts.append(("set up", 0, "set up"))
    if calibrates(step):
        parts.append(("calibrate", 0, "calibrate"))
    epochs = epochs_of(step)
    parts += [("epoch", epoch, f"epoch {epoch + 1} of {epochs}") for epoch in range(epochs)]
    if step.verb == "factorize":
        parts.append(("factorize", 0, "split layers"))
    elif step.verb == "recover":
        parts.append(("recover", 0, "run batches"))
    elif step.verb == "speedup":
        parts.append(("speedup", 0, "cut channels out"))
    elif step.verb == "export":
        parts.append(("export", 0, f"write {step.file}"))
    elif step.verb == "analyze":
        return [("analyze", 0, "measure how much each layer can lose")]
    elif step.verb == "search":
        return [("search", 0, "try config lists")]
    elif step.verb == "auto":
        parts.append(("auto", 0, "search, cut, train and export"))
    return [*parts, ("measure", 0, "measure")]
