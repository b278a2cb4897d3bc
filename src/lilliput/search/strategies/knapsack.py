"""The default strategy: the exact optimum of the scores, then exchanges judged by the real metric.

The scores of all decisions (:mod:`lilliput.search.scores`) are added up, and the choice of smallest
total within the budget is found exactly (:mod:`lilliput.search.solve`). Scores of layers are not really
additive, so pairs of decisions are tried next: one alternative milder here, one more aggressive there,
the most promising by their scores first; real improvements are kept.
"""

from __future__ import annotations

from itertools import islice

from lilliput.search.strategies.moves import exchanges
from lilliput.search.task import Task, Trial

_AT_A_TIME = 4  # trials: fixed, so that the result does not depend on the number of machines


def search(task: Task) -> Trial:
    """Return the best trial, or raise if the budget cannot be met."""
    best = task.solve_measured()
    if best is None:
        raise task.refuse()
    while not task.is_exhausted:
        better = _better(task, best)
        if better is None:
            break
        best = better
    return best


def _better(task: Task, best: Trial) -> Trial | None:
    """Return the best of the first few exchanges with an improvement, or None."""
    fitting = {x for x in exchanges(task, best.choice) if task.may_fit(x)} - task.tried.keys()
    ranked = iter(sorted(fitting, key=lambda x: (task.score(x), x)))
    while not task.is_exhausted:
        kept = (x for x in ranked if task.keeps(task.measure(x)))
        few = list(islice(kept, min(_AT_A_TIME, task.left)))
        if not few:
            return None
        found = max(task.trials(few), key=lambda trial: trial.metric)
        if found.metric > best.metric:
            return found
    return None
