"""The task of a search strategy: scores, estimated costs, and trials that measure a choice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lilliput.errors import AlgorithmError, LilliputError
from lilliput.search.budget import Limit, amount
from lilliput.search.candidate import Candidate, Maker, evaluated_model
from lilliput.search.costs import Counts
from lilliput.search.executors import outcome, submitted
from lilliput.search.journal import Journal
from lilliput.search.scores import find_scores
from lilliput.search.solve import Array, Choice, Term, nearest_to, solve, total
from lilliput.search.timing import Clock

log = logging.getLogger("lilliput")
_ROUNDING = 1e-6  # of a limit, by which a measurement may exceed it
_MEASURED = 4  # networks measured per allowed trial, at most
_TIGHT = 0.01  # of a budget: no network is so small
_ROUNDS = 8  # of solving, measuring, and solving again with corrected costs


class OutOfTimeError(LilliputError):
    """The time is up, so the next step is not started."""


@dataclass(frozen=True)
class Trial:
    """One evaluated config list.

    Parameters
    ----------
    choice : tuple of int
        The chosen alternative of each decision.
    costs : dict
        ``params``, ``macs``, ``average_bits`` and, if a budget needs them, ``bytes`` of the file and
        ``latency`` relative to the original's, as measured.
    metric : float
        The result of the user's evaluation.
    """

    choice: Choice
    costs: dict[str, float]
    metric: float


class Task:
    """One search: a space, its limits, and all measurements.

    Parameters
    ----------
    maker : Maker
        Creates networks.
    limits : mapping of str to Limit
        The budget.
    evaluate : callable
        The user's metric of a model, where higher is better.
    journal : Journal
        Stores measurements.
    clock : Clock, optional
        Times networks, if there is a latency budget.
    networks : int
        The number of networks to time for the latency table.
    trials : int
        The largest number of config lists to evaluate.
    seed : int
        Seed of strategies with random numbers.
    executor : concurrent.futures.Executor, optional
        Evaluates trials.
    """

    def __init__(
        self,
        maker: Maker,
        counts: Counts,
        limits: Mapping[str, Limit],
        evaluate: Callable[[Any], Any],
        journal: Journal,
        clock: Clock | None,
        networks: int,
        trials: int,
        seed: int,
        executor: Any = None,
    ) -> None:
        self.maker, self.counts, self.space = maker, counts, maker.space
        self.limits, self.evaluate, self.journal = limits, evaluate, journal
        self.clock, self.networks, self.seed = clock, networks, seed
        self.executor = executor
        self.deadline: float | None = None  # by the monotonic clock: no trial starts after it
        self.end: float | None = None  # later: nothing starts after it
        self.allowed, self.tried = trials, dict[Choice, Trial]()
        self.known: dict[Choice, dict[str, float]] = {}  # the real costs of choices
        self.shift: dict[str, float] = {}  # excess of measured costs over their estimates
        self._last: tuple[Choice, Candidate] | None = None

    # -- known before the search -------------------------------------------------------------------

    @cached_property
    def baseline(self) -> float:
        """The metric of the original."""
        held = self.journal.get("baseline")
        if held is None:
            # A copy: what the function attaches to its model must not affect the user's own.
            copied = self.space.backend.copy_model(self.space.model)
            held = evaluated_model(self.evaluate, copied, "the original model")
            self.journal.note("baseline", held)
        return float(held)

    @cached_property
    def scores(self) -> list[Array]:
        """The expected loss of each alternative."""
        held = self.journal.get("scores")
        if held is None:
            self.check_time()
            log.info("computing the sensitivity of %d decisions", len(self.space.decisions))
            corrected = bool(self.maker.options.get("bias_correction"))
            found = find_scores(self.space, self.maker.data, keeps_means=corrected)
            held = [x.tolist() for x in found]
            self.journal.note("scores", held)
        return [np.asarray(x, float) for x in held]

    @cached_property
    def whole(self) -> dict[str, float]:
        """The costs of the original."""
        groups = self.space.groups
        found = {
            "params": float(groups.count_parameters()),
            "macs": groups.count_macs() / self.counts.batch(),
            "latency": 1.0,
        }
        if "bytes" in self.limits:
            found["bytes"] = float(self._bytes_of_original())
        return found

    @cached_property
    def costs(self) -> dict[str, list[Term]]:
        """The estimated costs of choices that the budget limits."""
        found: dict[str, list[Term]] = {}
        if "params" in self.limits:
            found["params"] = self.counts.parameters()
        if "macs" in self.limits:
            found["macs"] = self.counts.macs()
        if "bytes" in self.limits:
            found["bytes"] = self.counts.bytes()
        if "average_bits" in self.limits:
            found["average_bits"] = self.counts.bits_above(self.limits["average_bits"].value)
        if self.clock is not None:
            found["latency"] = self._latency_terms(self.clock)
        return found

    def _latency_terms(self, clock: Clock) -> list[Term]:
        """Return estimates of latency, the same ones whenever this search is continued."""
        held = self.journal.get("latency")
        if held is None:
            clock.fill(self.networks, self.seed, self.check_time)
            held = [[list(t.decisions), t.values.tolist()] for t in clock.terms()]
            self.journal.note("latency", held)
        return [Term(tuple(d), np.asarray(values, float)) for d, values in held]

    @property
    def limited(self) -> list[str]:
        """The names of all budgets except the drop of the metric."""
        return [name for name in self.limits if name != "drop"]

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The upper bound of each cost."""
        found = {}
        for name in self.limited:
            limit = self.limits[name]
            if name == "average_bits":
                found[name] = 0.0
            elif name == "latency" and not limit.is_share and self.clock is not None:
                found[name] = limit.value / self.clock.milliseconds
            else:
                found[name] = limit.of(self.whole[name])
        return found

    # -- estimates ---------------------------------------------------------------------------------

    def estimate(self, name: str, choice: Sequence[int]) -> float:
        """Return the estimate of a cost, corrected by measurements."""
        return total(self.costs[name], choice) + self.shift.get(name, 0.0)

    def may_fit(self, choice: Sequence[int]) -> bool:
        """Whether a choice is expected to meet all budgets."""
        return all(
            self.estimate(name, choice) <= bound + _ROUNDING * abs(bound)
            for name, bound in self.bounds.items()
        )

    def score(self, choice: Sequence[int]) -> float:
        """Return the score of a whole choice."""
        return float(sum(x[i] for x, i in zip(self.scores, choice, strict=True)))

    def solve(self, looser: float = 1.0) -> Choice | None:
        """Return the choice with the smallest score that is expected to meet the budgets, times a factor."""
        bounds = {
            name: (self.bounds[name] * looser if self.bounds[name] > 0 else self.bounds[name])
            - self.shift.get(name, 0.0)
            for name in self.costs
        }
        return solve(self.scores, self.costs, bounds)

    def solve_measured(self, looser: float = 1.0) -> Trial | None:
        """Solve, measure, and solve again with corrected estimates, until the budget is really met."""
        for _ in range(_ROUNDS):
            choice = self.solve(looser)
            if choice is None:
                break
            costs = self.measure(choice)
            if self.keeps(costs, looser):
                return self.trial(choice)
            self.learn(choice, costs)
        return self._solve_from_smallest(looser)

    def _solve_from_smallest(self, looser: float) -> Trial | None:
        """Solve with estimates as the smallest network corrects them: others may be too high.

        Whether a budget can be met is decided by measurements, never by estimates alone.
        """
        for small in self._smallest():
            costs = self.measure(small)
            if self.keeps(costs, looser):
                self.shift = {}
                self.learn(small, costs)
                choice = self.solve(looser)
                if choice is not None and self.keeps(self.measure(choice), looser):
                    return self.trial(choice)
                return self.trial(small)
        return None

    def _smallest(self) -> list[Choice]:
        """Return the choice with the smallest estimates in terms of the budgets, and the most aggressive."""
        tight = {name: _TIGHT * bound for name, bound in self.bounds.items()}
        near = nearest_to(self.scores, self.costs, tight)
        strongest = tuple(n - 1 for n in self.space.sizes)
        return list(dict.fromkeys([near, strongest]))

    def learn(self, choice: Choice, costs: Mapping[str, float]) -> None:
        """Correct the estimates with the measured costs of a choice."""
        for name in ("bytes", "latency"):
            if name in self.costs:
                more = costs[name] - total(self.costs[name], choice)
                # Never decreased: two choices that are both too slow must not alternate.
                held = self.shift.get(name)
                self.shift[name] = more if held is None else max(held, more) + 1e-4 * abs(more)

    # -- measurements ------------------------------------------------------------------------------

    def candidate(self, choice: Choice) -> Candidate:
        """Return the network of a choice."""
        if self._last is None or self._last[0] != choice:
            self._last = (choice, self.maker.order(choice).make())
        return self._last[1]

    def measure(self, choice: Choice) -> dict[str, float]:
        """Return the real costs of a choice: counted, of the file, and timed."""
        if choice not in self.known:
            name = f"costs {_key(choice)}"
            held = self.journal.get(name)
            if held is None:
                held = self._measured(choice)
                self.journal.note(name, held)
            self.known[choice] = dict(held)
        return self.known[choice]

    def _measured(self, choice: Choice) -> dict[str, float]:
        self.check_time()
        found = {
            "params": total(self.counts.parameters(), choice),
            "macs": total(self.counts.macs(), choice),
            "average_bits": self.counts.average_bits(choice),
        }
        if self.clock is not None:
            found["latency"], found["bytes"] = self.clock.measure(choice, self.candidate(choice))
        elif "bytes" in self.limits:
            found["bytes"] = float(self.maker.bytes_of(self.candidate(choice)))
        return found

    def keeps(self, costs: Mapping[str, float], looser: float = 1.0) -> bool:
        """Whether measured costs meet all budgets."""
        return all(value <= bound for _, value, bound in self.compared(costs, looser))

    def compared(
        self, costs: Mapping[str, float], looser: float = 1.0
    ) -> list[tuple[str, float, float]]:
        """Return each limited cost as measured, and its bound."""
        rows = []
        for name in self.limited:
            is_bits = name == "average_bits"
            bound = self.limits[name].value if is_bits else self.bounds[name] * looser
            rows.append((name, costs[name], bound + _ROUNDING * abs(bound)))
        return rows

    def trial(self, choice: Choice) -> Trial:
        """Measure a choice, including the metric."""
        return self.trials([choice])[0]

    def trials(self, choices: Sequence[Choice]) -> list[Trial]:
        """Measure several choices; the executor, if any, computes their metrics."""
        costs = {choice: self.measure(choice) for choice in choices}
        due = [x for x in costs if x not in self.tried and self._metric(x) is None]
        for choice, metric in zip(due, self._evaluated(due), strict=True):
            self.journal.note(f"metric {_key(choice)}", metric)
        for choice in costs:
            if choice not in self.tried:
                metric = float(self._metric(choice))
                self.tried[choice] = Trial(choice, costs[choice], metric)
                shown = (len(self.tried), metric, self.baseline)
                log.info("trial %d: metric %.4g (original %.4g)", *shown)
        return [self.tried[choice] for choice in choices]

    def _metric(self, choice: Choice) -> Any:
        return self.journal.get(f"metric {_key(choice)}")

    def _evaluated(self, choices: Sequence[Choice]) -> Iterator[float]:
        """Yield metrics in the order of the choices, whatever the order of the executor."""
        names = [f"the config list {_key(choice)}" for choice in choices]
        if self.executor is None or len(choices) < 2:
            for choice, name in zip(choices, names, strict=True):
                self.check_time()
                yield evaluated_model(self.evaluate, self.candidate(choice).model, name)
            return
        self.check_time()
        orders = [self.maker.order(choice) for choice in choices]
        futures = [
            submitted(self.executor, order, self.evaluate, name)
            for order, name in zip(orders, names, strict=True)
        ]
        for future, order, name in zip(futures, orders, names, strict=True):
            yield outcome(future, order, self.evaluate, name)

    @property
    def left(self) -> int:
        """The number of remaining trials."""
        return max(self.allowed - len(self.tried), 0)

    @property
    def is_exhausted(self) -> bool:
        """Whether all allowed trials were made, or too many networks turned out to be too large."""
        is_late = self.deadline is not None and time.monotonic() > self.deadline
        return is_late or not self.left or len(self.known) >= _MEASURED * self.allowed

    def check_time(self) -> None:
        """Raise if the time is up."""
        if self.end is not None and time.monotonic() > self.end:
            raise OutOfTimeError("the time is up.")

    @property
    def is_prepared(self) -> bool:
        """Whether sensitivities and latencies are known, so that estimates take no time."""
        has_table = self.clock is None or self.journal.get("latency") is not None
        return has_table and self.journal.get("scores") is not None

    # -- errors ------------------------------------------------------------------------------------

    def refuse(self) -> AlgorithmError:
        """Return an error that names the budget that cannot be met and what is achievable."""
        rows = [self.compared(self.measure(small)) for small in self._smallest()]
        near = min(rows, key=lambda row: max(value / bound for _, value, bound in row))
        lines = []
        for name, value, bound in near:
            mark = "" if value <= bound else "  ← over"
            lines.append(f"{self.limits[name]}: {self.shown(name, value)} is achievable{mark}")
        return AlgorithmError(
            f"the budget cannot be met with these choices. The closest: {'; '.join(lines)}. Relax the "
            "budget, or add more aggressive choices."
        )

    def refuse_drop(self, best: Trial, nearest: Trial | None) -> AlgorithmError:
        """Return an error that reports the loss and what is achievable within the drop."""
        allowed = self.limits["drop"].value
        text = (
            f"drop {allowed:g}: within the rest of the budget, the best result loses "
            f"{self.baseline - best.metric:.4g} ({self.baseline:.4g} → {best.metric:.4g})."
        )
        if nearest is not None:
            had = ", ".join(
                f"{name} {self.shown(name, value)}"
                for name, value, _ in self.compared(nearest.costs)
            )
            text += f" The closest result that meets the drop has {had}."
        return AlgorithmError(f"{text} Relax the budget, or train the network after the search.")

    def shown(self, name: str, value: float) -> str:
        """Return a cost as text, with its fraction of the original's."""
        whole = self.whole.get(name)
        if name == "latency" and self.clock is not None:
            return f"{value:.3g} of the original's {amount(name, self.clock.milliseconds)}"
        share = f" ({value / whole:.3g} of the original's)" if whole else ""
        return f"{amount(name, value)}{share}"

    def _bytes_of_original(self) -> int:
        held = self.journal.get("original bytes")
        if held is None:
            held = self.maker.bytes_of(None)
            self.journal.note("original bytes", held)
        return int(held)


def _key(choice: Sequence[int]) -> str:
    return "-".join(map(str, choice))
