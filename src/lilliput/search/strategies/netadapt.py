"""NetAdapt: approach the budget step by step, each time where the metric drops least.

Yang et al., "NetAdapt: platform-aware neural network adaptation for mobile applications", 2018.
Starting from the mildest choice, each round makes one decision more aggressive, by as many alternatives
as needed to save the round's share of the excess. The proposals with the smallest score are evaluated,
and the best one is kept; the share of a round decreases by a factor of 0.96 each time.
"""

from __future__ import annotations

from lilliput.search.solve import Choice
from lilliput.search.strategies.moves import moved
from lilliput.search.task import Task, Trial

_SHARE, _DECAY = 0.15, 0.96
_ROUNDING = 1e-9
_EVALUATED = 2  # proposals of each round, as long as trials are left


def search(
    task: Task, share: float = _SHARE, decay: float = _DECAY, evaluated: int = _EVALUATED
) -> Trial:
    """Return the trial that meets the budget, or raise if it cannot be met."""
    choice: Choice = (0,) * len(task.space.decisions)
    least, whole = share, _excess(task, choice)
    while True:
        if task.may_fit(choice):
            costs = task.measure(choice)
            if task.keeps(costs):
                return task.trial(choice)
            task.learn(choice, costs)
            continue
        proposals = _proposals(task, choice, least * whole)
        if not proposals:
            raise task.refuse()
        ranked = sorted(proposals, key=lambda x: (task.score(x), x))[:evaluated]
        # One trial is reserved for the final choice.
        is_open = 1 < len(ranked) < task.left and not task.is_exhausted
        choice = max(ranked, key=lambda x: task.trial(x).metric) if is_open else ranked[0]
        least *= decay


def _proposals(task: Task, choice: Choice, saving: float) -> list[Choice]:
    """Return, for each decision, the mildest change that saves enough; otherwise all that save anything."""
    before = _excess(task, choice)
    saving = min(saving, before) * (1 - _ROUNDING)  # the last step goes no further than necessary
    found, smaller = [], []
    for d, size in enumerate(task.space.sizes):
        changes = [moved(choice, d, step) for step in range(1, size - choice[d])]
        saved = [(x, before - _excess(task, x)) for x in changes]
        enough = [x for x, s in saved if s >= saving]
        found += enough[:1]
        smaller += [x for x, s in saved if s > 0][-1:]
    return found or smaller


def _excess(task: Task, choice: Choice) -> float:
    """Return by how much a choice is expected to exceed budgets, relative to the original's costs."""
    over = 0.0
    for name, bound in task.bounds.items():
        unit = task.whole.get(name) or task.whole["params"]
        over += max(task.estimate(name, choice) - bound, 0.0) / unit
    return over
