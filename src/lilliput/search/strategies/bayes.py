"""Bayesian search with Optuna's tree-structured Parzen estimator.

Bergstra et al., "Algorithms for hyper-parameter optimization", 2011; Akiba et al., "Optuna", 2019. The
estimator draws alternatives that are likelier among good trials than among bad ones. Its samples are made
more aggressive, at random, until they are expected to meet the budget, and the sampler is told the choice
that was evaluated.

``optuna.log`` next to the journal of the search contains the study, for Optuna's dashboard. It is rewritten
when a search is resumed: the same seed gives the same draws, and completed trials are only looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lilliput.search.solve import Choice
from lilliput.search.strategies.moves import repaired
from lilliput.search.task import Task, Trial

NAME = "optuna.log"
_AT_A_TIME = 4  # trials: the same number on one machine or several
_DRAWS = 20  # without a new network, after which the search ends


def search(task: Task) -> Trial:
    """Return the best trial, or raise if the budget cannot be met."""
    best = task.solve_measured()
    if best is None:
        raise task.refuse()
    rng = np.random.default_rng(task.seed)
    with _quiet():
        study = _Study(task)
        study.tell(best)
        while not task.is_exhausted:
            few = study.draw(min(_AT_A_TIME, task.left), rng)
            if not few:
                break
            for trial in task.trials(few):
                study.tell(trial)
                best = max(best, trial, key=lambda t: t.metric)
    return best


class _Study:
    """The Optuna study of a task."""

    def __init__(self, task: Task) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        self.task = task
        path = task.journal.path.with_name(NAME)
        path.unlink(missing_ok=True)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        sampler = optuna.samplers.TPESampler(seed=task.seed)
        self.study = optuna.create_study(
            study_name="lilliput", storage=storage, sampler=sampler, direction="maximize"
        )
        # By number and layer, which the dashboard shows.
        self.names = [f"{n}: {d.key} of {d.layers[0]}" for n, d in enumerate(task.space.decisions)]
        integers = optuna.distributions.IntDistribution
        self.choices: dict[str, optuna.distributions.BaseDistribution] = {
            name: integers(0, size - 1)
            for name, size in zip(self.names, task.space.sizes, strict=True)
        }

    def draw(self, count: int, rng: np.random.Generator) -> list[Choice]:
        """Return choices that meet the budget and were not tried; empty if no more are found."""
        import optuna

        found: list[Choice] = []
        for _ in range(_DRAWS):
            asked = self.study.ask(self.choices)
            drawn = tuple(int(asked.params[name]) for name in self.names)
            # Results are added as separate trials.
            self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
            choice = repaired(self.task, drawn, rng)
            is_new = choice is not None and choice not in (*self.task.tried, *found)
            if choice is not None and is_new and self.task.keeps(self.task.measure(choice)):
                found.append(choice)
            if len(found) == count or self.task.is_exhausted:
                break
        return found

    def tell(self, trial: Trial) -> None:
        """Add a trial with its metric."""
        import optuna

        params: dict[str, Any] = dict(zip(self.names, trial.choice, strict=True))
        made = optuna.trial.create_trial(
            params=params, distributions=self.choices, value=trial.metric
        )
        self.study.add_trial(made)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Optuna's messages about single trials."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
