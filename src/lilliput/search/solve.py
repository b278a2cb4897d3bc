"""Choose one alternative of every decision: the smallest total score within all budgets, exactly.

Costs are sums of terms. A term depends on one decision, or on several (the parameters of a layer
depend on the channels that it reads and on those that it produces). With a 0/1 variable ``x[d, i]`` for
alternative ``i`` of decision ``d``, a term over several decisions gets a variable ``z[k]`` in [0, 1] for
each combination ``k``, tied to the others by ``sum of z[k] with k_d = i  =  x[d, i]``. If all ``x`` are
0 or 1, exactly one ``z`` of each term is 1, so this is exact.

>>> scores = [np.array([0.0, 1.0, 5.0]), np.array([0.0, 3.0])]
>>> widths = Term((0, 1), np.array([[8.0, 4.0], [4.0, 2.0], [2.0, 1.0]]))  # 8, 4 or 2 times 1 or 1/2
>>> solve(scores, {"params": [widths]}, {"params": 4.0})
(1, 0)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.errors import AlgorithmError
from lilliput.extras import require

log = logging.getLogger("lilliput")

Array = NDArray[np.float64]
Choice = tuple[int, ...]

_SLACK = 1e-9  # of a budget: tolerance for rounding of a sum that just fits
_SECONDS = 120.0
_OUT_OF_TIME = 1


@dataclass(frozen=True, eq=False)
class Term:
    """A part of a cost: one number for each combination of alternatives of a few decisions.

    Parameters
    ----------
    decisions : tuple of int
        The decisions that it depends on, none for a constant.
    values : array
        Its value, with one axis for each decision.
    """

    decisions: tuple[int, ...]
    values: Array

    def at(self, choice: Sequence[int]) -> float:
        """Return its value for a choice."""
        return float(self.values[tuple(choice[d] for d in self.decisions)])


Costs = Mapping[str, Sequence[Term]]
Budgets = Mapping[str, float]


def total(terms: Sequence[Term], choice: Sequence[int]) -> float:
    """Return the cost of a choice.

    Examples
    --------
    >>> total([Term((), np.array(1.0)), Term((1,), np.array([2.0, 3.0]))], (0, 1))
    4.0
    """
    return sum(term.at(choice) for term in terms)


def solve(scores: Sequence[Array], costs: Costs, budgets: Budgets) -> Choice | None:
    """Return the choice with the smallest total score within all budgets, or None.

    Parameters
    ----------
    scores : sequence of array
        The expected loss of each alternative of each decision.
    costs : mapping of str to sequence of Term
        The limited costs.
    budgets : mapping of str to float
        The upper bound of each cost.
    """
    return _Program(scores, costs).run(budgets)


def cheapest(scores: Sequence[Array], costs: Costs, name: str, most: float) -> Choice:
    """Return the choice with the smallest value of one cost, among those with a total score within a bound.

    Examples
    --------
    >>> scores = [np.array([0.0, 1.0]), np.array([0.0, 2.0])]
    >>> price = {"bytes": [Term((0,), np.array([9.0, 1.0])), Term((1,), np.array([9.0, 0.0]))]}
    >>> cheapest(scores, price, "bytes", 1.5)
    (1, 0)
    """
    lost = [Term((d,), score) for d, score in enumerate(scores)]
    return _known(_Program(scores, {**costs, "": lost}).run({"": most}, minimize=name))


def nearest_to(scores: Sequence[Array], costs: Costs, budgets: Budgets) -> Choice:
    """Return the choice that exceeds budgets least, by the largest relative excess."""
    return _known(_Program(scores, costs).run(budgets, with_excess=True))


def _known(choice: Choice | None) -> Choice:
    if choice is None:
        raise AlgorithmError("the solver found no choice at all; this is a bug in Lilliput.")
    return choice


class _Program:
    """The variables and equations of a choice, for ``scipy.optimize.milp``."""

    def __init__(self, scores: Sequence[Array], costs: Costs) -> None:
        self.scores, self.costs = scores, costs
        sizes = [len(s) for s in scores]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        joint = {t.decisions for terms in costs.values() for t in terms if len(t.decisions) > 1}
        self.combinations: dict[tuple[int, ...], int] = {}
        place = int(self.starts[-1])
        for decisions in sorted(joint):
            self.combinations[decisions] = place
            place += int(np.prod([sizes[d] for d in decisions]))
        self.excess, self.size = place, place + 1
        self.rows: list[tuple[list[int], list[float], float, float]] = []
        for d, n in enumerate(sizes):
            self._equal([*range(self.starts[d], self.starts[d] + n)], [1.0] * n, 1.0)
        for decisions in self.combinations:
            self._tie(decisions, [sizes[d] for d in decisions])

    def run(self, budgets: Budgets, minimize: str = "", with_excess: bool = False) -> Choice | None:
        """Minimize the score, a cost, or the excess over budgets."""
        require("scipy", "searching needs pip install 'lilliput[search]'")
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        if not self.scores:
            return () if self._fits((), budgets) or with_excess else None
        rows = [*self.rows, *(self._limit(k, b, with_excess) for k, b in budgets.items())]
        goal = np.zeros(self.size)
        if with_excess:
            goal[self.excess] = 1.0
        elif minimize:
            _, goal = self._cost(minimize)
        else:
            goal[: self.starts[-1]] = np.concatenate(self.scores)
        biggest = np.abs(goal).max()
        data = [x for _, values, _, _ in rows for x in values]
        columns = [x for places, _, _, _ in rows for x in places]
        ends = np.cumsum([0, *(len(places) for places, _, _, _ in rows)])
        matrix = csr_array((data, columns, ends), shape=(len(rows), self.size))
        whole = np.zeros(self.size)
        whole[: self.starts[-1]] = 1
        highest = np.ones(self.size)
        highest[self.excess] = np.inf if with_excess else 0.0
        found: Any = milp(
            goal / biggest if biggest > 0 else goal,
            integrality=whole,
            bounds=Bounds(np.zeros(self.size), highest),
            constraints=LinearConstraint(matrix, [r[2] for r in rows], [r[3] for r in rows]),
            options={"mip_rel_gap": 0.0, "time_limit": _SECONDS},
        )
        if found.x is None:
            return None
        if found.status == _OUT_OF_TIME:
            log.warning(
                "the solver stopped after %g s; its choice meets the budgets, but a better one may exist "
                "(by at most %.2g of the score).",
                _SECONDS,
                found.mip_gap,
            )
        return tuple(
            int(np.argmax(found.x[self.starts[d] : self.starts[d + 1]]))
            for d in range(len(self.scores))
        )

    def _fits(self, choice: Choice, budgets: Budgets) -> bool:
        return all(total(self.costs[k], choice) <= b * (1 + _SLACK) for k, b in budgets.items())

    def _equal(self, places: list[int], values: list[float], to: float) -> None:
        self.rows.append((places, values, to, to))

    def _tie(self, decisions: tuple[int, ...], sizes: list[int]) -> None:
        """Make the combinations of a term agree with each of its decisions."""
        start = self.combinations[decisions]
        indices = np.arange(int(np.prod(sizes))).reshape(sizes) + start
        for axis, d in enumerate(decisions):
            for i in range(sizes[axis]):
                places = np.take(indices, i, axis=axis).ravel().tolist()
                own = int(self.starts[d]) + i
                self._equal([*places, own], [*([1.0] * len(places)), -1.0], 0.0)

    def _cost(self, name: str) -> tuple[float, Array]:
        """Return the constant part of a cost, and the coefficient of each variable."""
        constant, row = 0.0, np.zeros(self.size)
        for term in self.costs[name]:
            if not term.decisions:
                constant += float(term.values)
            elif len(term.decisions) == 1:
                start = self.starts[term.decisions[0]]
                row[start : start + term.values.size] += term.values
            else:
                start = self.combinations[term.decisions]
                row[start : start + term.values.size] += term.values.ravel()
        return constant, row

    def _limit(
        self, name: str, budget: float, with_excess: bool
    ) -> tuple[list[int], list[float], float, float]:
        constant, row = self._cost(name)
        # As shares of the budget, so that all rows have a similar scale whatever their unit.
        unit = max(abs(budget), abs(constant), float(np.abs(row).max()), 1e-300)
        if with_excess:
            row[self.excess] = -max(abs(budget), 1e-6 * unit)
        places = np.flatnonzero(row)
        most = (budget - constant) / unit + _SLACK
        return places.tolist(), (row[places] / unit).tolist(), -np.inf, most
