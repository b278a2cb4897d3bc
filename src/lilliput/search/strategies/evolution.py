"""Evolution by level switches: one survivor and many offspring, selected by the real metric.

Sieberling et al., "EvoPress: accurate dynamic model compression via evolutionary search", 2025. An
offspring has a few decisions one alternative milder and others one more aggressive, so that the costs
stay nearly the same. Selection has two stages: offspring with the smallest score continue, and the
metric selects the best.
"""

from __future__ import annotations

import numpy as np

from lilliput.search.solve import Choice
from lilliput.search.strategies.moves import repaired, steps
from lilliput.search.task import Task, Trial

_OFFSPRING, _EVALUATED = 32, 4
_MOST_SWITCHES = 3


def search(task: Task) -> Trial:
    """Return the best trial, or raise if the budget cannot be met."""
    rng = np.random.default_rng(task.seed)
    best = task.solve_measured()
    if best is None:
        raise task.refuse()
    seen = {best.choice}
    while not task.is_exhausted:
        made = {x for _ in range(_OFFSPRING) if (x := _offspring(task, best.choice, rng))} - seen
        if not made:
            break
        few = sorted(made, key=lambda x: (task.score(x), x))[:_EVALUATED]
        seen |= set(few)
        kept = [x for x in few if task.keeps(task.measure(x))][: task.left]
        best = max([best, *task.trials(kept)], key=lambda trial: trial.metric)
    return best


def _offspring(task: Task, parent: Choice, rng: np.random.Generator) -> Choice | None:
    """Return the parent with some decisions milder, and others more aggressive until the budget is met."""
    choice = parent
    for _ in range(int(rng.integers(1, _MOST_SWITCHES + 1))):
        milder = steps(task, choice, -1)
        if milder:
            choice = milder[int(rng.integers(len(milder)))]
    return repaired(task, choice, rng)
