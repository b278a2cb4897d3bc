"""Simulated annealing over choices, as in NNI's SimulatedAnnealingPruner and Liu et al. 2020 (AutoCompress).

A random change, large at high temperature, is accepted if the metric is better, otherwise with probability
``exp(-drop / temperature)``. The temperature falls from 100 to 20 by a factor of 0.9; drops count in percent
of the original's metric, as for an accuracy in percent.
"""

from __future__ import annotations

import math

import numpy as np

from lilliput.search.solve import Choice
from lilliput.search.strategies.moves import repaired
from lilliput.search.task import Task, Trial

_HOTTEST, _COLDEST, _COOLING = 100.0, 20.0, 0.9
_CHANGED = 0.35  # of all decisions, at the highest temperature
_DRAWS = 20  # until a new network is found


def search(
    task: Task,
    hottest: float = _HOTTEST,
    coldest: float = _COLDEST,
    cooling: float = _COOLING,
    changed: float = _CHANGED,
) -> Trial:
    """Return the best trial, or raise if the budget cannot be met."""
    rng = np.random.default_rng(task.seed)
    best = task.solve_measured()
    if best is None:
        raise task.refuse()
    now, temperature = best, hottest
    while not task.is_exhausted:
        choice = _changed(task, now.choice, changed * temperature / hottest, rng)
        if choice is None:
            break
        if not task.keeps(task.measure(choice)):
            continue
        trial = task.trial(choice)
        drop = 100 * (now.metric - trial.metric) / max(abs(task.baseline), 1e-12)
        if drop <= 0 or rng.random() < math.exp(-drop / temperature):
            now = trial
        best = trial if trial.metric > best.metric else best
        temperature = max(cooling * temperature, coldest)
    return best


def _changed(task: Task, choice: Choice, share: float, rng: np.random.Generator) -> Choice | None:
    """Return a random change that is expected to meet the budget and was not measured yet."""
    sizes = np.array(task.space.sizes)
    for _ in range(_DRAWS):
        is_drawn = rng.random(len(sizes)) < share
        is_drawn[int(rng.integers(len(sizes)))] = True
        drawn = np.where(is_drawn, rng.integers(sizes), choice)
        found = repaired(task, tuple(int(x) for x in drawn), rng)
        if found is not None and found not in task.known:
            return found
    return None
