"""The solver against trying everything."""

from itertools import product

import numpy as np
import pytest

from lilliput.errors import MissingExtraError
from lilliput.search.solve import Term, nearest_to, solve, total


def random_problem(seed):
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 4, size=5)]
    scores = [np.sort(rng.random(n)) for n in sizes]
    costs = {}
    for name in ("one", "two"):
        terms = [Term((), np.array(rng.random()))]
        terms += [Term((d,), rng.random(n)) for d, n in enumerate(sizes)]
        for decisions in ((0, 1), (1, 2, 4), (2, 3)):
            terms.append(Term(decisions, rng.random([sizes[d] for d in decisions])))
        costs[name] = terms
    return sizes, scores, costs


def score(scores, choice):
    return sum(s[i] for s, i in zip(scores, choice, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_best_of_all(seed):
    sizes, scores, costs = random_problem(seed)
    every = list(product(*map(range, sizes)))
    totals = {name: np.array([total(terms, c) for c in every]) for name, terms in costs.items()}
    budgets = {"one": np.quantile(totals["one"], 0.3), "two": np.quantile(totals["two"], 0.5)}
    fitting = [
        c
        for i, c in enumerate(every)
        if all(totals[name][i] <= budget for name, budget in budgets.items())
    ]
    found = solve(scores, costs, budgets)
    if not fitting:
        assert found is None
        return
    assert all(total(costs[name], found) <= b + 1e-7 for name, b in budgets.items())
    assert score(scores, found) == pytest.approx(min(score(scores, c) for c in fitting))


def test_a_budget_that_is_just_met_by_one_choice_gives_that_one():
    sizes, scores, costs = random_problem(3)
    every = list(product(*map(range, sizes)))
    smallest = min(every, key=lambda c: total(costs["one"], c))
    assert solve(scores, costs, {"one": total(costs["one"], smallest)}) == smallest


def test_what_cannot_be_met_is_exceeded_as_little_as_possible():
    sizes, scores, costs = random_problem(5)
    budgets = dict.fromkeys(costs, 0.001)
    assert solve(scores, costs, budgets) is None
    near = nearest_to(scores, costs, budgets)

    def excess(choice):
        return max(total(costs[name], choice) / b for name, b in budgets.items())

    every = product(*map(range, sizes))
    assert excess(near) == pytest.approx(min(map(excess, every)))


def test_the_solver_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r"lilliput\[search\]"):
        solve([np.zeros(2)], {"one": [Term((0,), np.ones(2))]}, {"one": 1.0})
