"""The default: the exact best by scores, then exchanges that are judged by the real metric.

The scores of all decisions (:mod:`lilliput.search.scores`) are added up, and the choice of least total
within the budget is found exactly (:mod:`lilliput.search.solve`). Scores of layers do not really add up, so
then pairs of decisions are tried: one alternative milder here, one stronger there, the most promising by
their scores first, and what is really better stays.
"""

from __future__ import annotations

from lilliput.search.solve import Choice
from lilliput.search.task import Task, Trial


def search(task: Task) -> Trial:
    """Return the best trial, or raise if the budget cannot be met."""
    best = task.solve_measured()
    if best is None:
        raise task.refuse()
    while not task.is_exhausted:
        better = _first_better(task, best)
        if better is None:
            break
        best = better
    return best


def _first_better(task: Task, best: Trial) -> Trial | None:
    """Return the first exchange with a better metric, None if there is none or no trial is left."""
    for choice in exchanges(task, best.choice):
        if task.is_exhausted:
            return None
        if choice in task.tried or not task.keeps(task.measure(choice)):
            continue
        trial = task.trial(choice)
        if trial.metric > best.metric:
            return trial
    return None


def exchanges(task: Task, choice: Choice) -> list[Choice]:
    """Return choices with one decision milder and at most one stronger, of least score first."""
    steps = [
        (d, s) for d, n in enumerate(task.space.sizes) for s in (-1, 1) if 0 <= choice[d] + s < n
    ]
    found = []
    for d, step in steps:
        if step < 0:
            milder = _moved(choice, d, -1)
            found.append(milder)
            found += [_moved(milder, e, 1) for e, other in steps if other > 0 and e != d]
    fitting = [x for x in found if task.may_fit(x)]
    return sorted(fitting, key=lambda x: (task.score(x), x))


def _moved(choice: Choice, decision: int, step: int) -> Choice:
    return tuple(x + step if d == decision else x for d, x in enumerate(choice))
