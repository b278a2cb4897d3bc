"""Moves between choices, shared by the strategies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lilliput.search.solve import Choice
from lilliput.search.task import Task


def moved(choice: Choice, decision: int, step: int) -> Choice:
    """Return a choice with one decision moved by some alternatives.

    Examples
    --------
    >>> moved((0, 2, 1), 1, -1)
    (0, 1, 1)
    """
    return tuple(x + step if d == decision else x for d, x in enumerate(choice))


def steps(task: Task, choice: Choice, step: int) -> list[Choice]:
    """Return every choice that is one alternative more (1) or less (-1) aggressive in one decision."""
    return [
        moved(choice, d, step) for d, n in enumerate(task.space.sizes) if 0 <= choice[d] + step < n
    ]


def exchanges(task: Task, choice: Choice) -> Iterator[Choice]:
    """Return choices with one decision less aggressive, and at most one other more aggressive."""
    for milder in steps(task, choice, -1):
        yield milder
        yield from (x for x in steps(task, milder, 1) if x != choice)


def repaired(task: Task, choice: Choice, rng: np.random.Generator) -> Choice | None:
    """Return a choice that is expected to meet the budget, by random steps to more aggressive alternatives.

    None if even the most aggressive alternatives do not meet it.
    """
    while not task.may_fit(choice):
        stronger = steps(task, choice, 1)
        if not stronger:
            return None
        choice = stronger[int(rng.integers(len(stronger)))]
    return choice


def alike(task: Task) -> Choice | None:
    """Return the mildest choice with one sparsity for all decisions that meets the budget, if any.

    A decision without that sparsity gets the next smaller one.
    """
    decisions = task.space.decisions
    for share in sorted({x for decision in decisions for x in decision.choices}):
        choice = tuple(max(sum(x <= share for x in d.choices) - 1, 0) for d in decisions)
        if task.may_fit(choice) and task.keeps(task.measure(choice)):
            return choice
    return None
