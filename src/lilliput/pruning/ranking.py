"""From channel scores to the channels to remove: exact counts, limits, joint ranking, budgets.

Everything here is plain NumPy and independent of the framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lilliput.errors import AlgorithmError
from lilliput.graph.stages import Stage
from lilliput.ops.masks import prune_count

Flags = NDArray[np.bool_]
Scores = NDArray[np.float64]
Removed = dict[str, Flags]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The units of one group, and the limits of their removal.

    Parameters
    ----------
    name : str
        Name of the group.
    scores : array of float
        Importance of each unit; larger is kept.
    removed : array of bool
        Units that are removed already; they stay removed.
    rows : array of int, optional
        Row of each unit; all rows keep the same number of units.
    channels : int
        Channels per unit.
    min_kept, round_to : int
        The fewest channels to keep, and the number that their count must be a multiple of.
    most : float, optional
        The largest share to remove.
    stage : Stage, optional
        The allowed combinations of kept units per row, where rows need not be equal.
    scores_compare : bool
        Whether scores are comparable across groups.

    Examples
    --------
    >>> few = Candidates("conv", np.array([3.0, 1.0, 2.0, 1.0]), np.zeros(4, bool))
    >>> few.take(few.limit(1)), few.limit(9)
    (array([False, False, False,  True]), 3)
    """

    name: str
    scores: Scores
    removed: Flags
    rows: NDArray[np.int64] | None = None
    channels: int = 1
    min_kept: int = 1
    round_to: int = 1
    most: float | None = None
    stage: Stage | None = None
    scores_compare: bool = False

    @property
    def size(self) -> int:
        """Number of units."""
        return int(self.scores.size)

    @property
    def ranked(self) -> Scores:
        """The scores, with removed units ranked below all others."""
        return np.where(self.removed, -np.inf, self.scores)

    @property
    def relative(self) -> Scores:
        """The ranked scores divided by their mean, so that layers can be compared."""
        if self.scores_compare:
            return self.ranked
        kept = self.scores[~self.removed]
        mean = kept.mean() if kept.size else 0.0
        return self.ranked / mean if mean > 0 else self.ranked

    def limit(self, count: int) -> int:
        """Return the largest total number of units, at most ``count``, that may be removed."""
        if self.most is not None:
            count = min(count, prune_count(self.size, self.most))
        if self.stage is not None:
            return self.size - int(self._stage_counts(self.stage, count).sum())
        rows = 1 if self.rows is None else len(np.unique(self.rows))
        step = math.lcm(rows, self.round_to // math.gcd(self.round_to, self.channels))
        least = -(-self.min_kept // self.channels)
        kept = -(-max(self.size - count, least) // step) * step
        return max(self.size - kept, int(self.removed.sum()))

    def _stage_counts(self, stage: Stage, count: int) -> NDArray[np.int64]:
        """Return how many units of each row are kept if at most ``count`` are removed."""
        alive = np.bincount(stage.rows[~self.removed], minlength=int(stage.rows.max()) + 1)
        least = -(-(self.size - count) * stage.size // self.size)
        for step in range(max(least, 1), stage.size):
            width, kept = stage.width(step), stage.kept(step)
            if width % self.round_to or width < self.min_kept or kept is None:
                continue
            if (kept <= alive).all() and self.size - kept.sum() <= count:
                return kept
        return alive

    def take(self, count: int) -> Flags:
        """Return the ``count`` units of smallest score; among equal scores, the last ones."""
        chosen: Flags = self.removed.copy()
        rows = np.zeros(self.size, np.int64) if self.rows is None else self.rows
        sizes = np.bincount(rows)
        gone = np.full(len(sizes), count // len(sizes))
        if self.stage is not None:
            gone = sizes - self._stage_counts(self.stage, count)
        for row, number in enumerate(gone):
            chosen[self._order(np.flatnonzero(rows == row))[:number]] = True
        return chosen

    def queue(self) -> Scores:
        """Return the relative scores of all units that may be removed, in order of removal."""
        order = self._order(np.arange(self.size))
        return self.relative[order][: self.limit(self.size)]

    def _order(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return units[np.lexsort((-units, self.ranked[units]))]


def take_share(candidates: Sequence[Candidates], sparsity: float) -> Removed:
    """Remove a share of the units of all groups together, by their relative scores.

    Examples
    --------
    >>> none = np.zeros(2, bool)
    >>> one = Candidates("one", np.array([1.0, 9.0]), none)
    >>> two = Candidates("two", np.array([4.0, 5.0]), none)
    >>> take_share([one, two], 0.25)["one"]
    array([ True, False])
    """
    count = prune_count(sum(group.size for group in candidates), sparsity)
    possible = sum(len(group.queue()) for group in candidates)
    if count > possible:
        raise AlgorithmError(
            f"total_sparsity {sparsity} requests the removal of {count} channels, but the limits of the rule "
            f"(max_sparsity_per_layer, min_kept, round_to) allow {possible}."
        )
    return _take_first(candidates, count)


def take_until(
    candidates: Sequence[Candidates],
    budget: float,
    count: Callable[[Mapping[str, Flags]], int],
    what: str,
    others: Mapping[str, Flags],
) -> Removed:
    """Remove as few units as necessary, by their relative scores, to meet a budget.

    Parameters
    ----------
    candidates : sequence of Candidates
        The groups to choose from.
    budget : float
        The largest value of ``count``: below 1 a share of the whole model, otherwise a number.
    count : callable
        Parameters or operations of the model without the removed units.
    what : str
        Name of the budget, for the message if it cannot be met.
    others : mapping
        The units removed from other groups.
    """
    whole = count({})
    allowed = math.floor(whole * budget) if budget < 1 else int(budget)

    def cost(first: int) -> int:
        return count({**others, **_take_first(candidates, first)})

    low, high = 0, sum(len(group.queue()) for group in candidates)
    least = cost(high)
    if least > allowed:
        raise AlgorithmError(
            f"{what} {budget:g} allows {allowed:,} of {whole:,}, but the selected layers and their limits "
            f"can reach only {least:,}; select more layers or relax the limits."
        )
    while low < high:  # the cost never grows with the number of removed units
        middle = (low + high) // 2
        low, high = (low, middle) if cost(middle) <= allowed else (middle + 1, high)
    return _take_first(candidates, low)


def _take_first(candidates: Sequence[Candidates], first: int) -> Removed:
    """Remove the first units of the joint queue, as far as each group's limits allow.

    Among units with equal scores, every group loses the same share.
    """
    queues = [group.queue() for group in candidates]
    owners = np.repeat(np.arange(len(queues)), [len(queue) for queue in queues])
    places = np.concatenate(
        [np.arange(1, len(q) + 1) / group.size for q, group in zip(queues, candidates, strict=True)]
    )
    order = np.lexsort((places, np.concatenate(queues)))[:first]
    counts = np.bincount(owners[order], minlength=len(queues))
    return {
        group.name: group.take(group.limit(int(n)))
        for group, n in zip(candidates, counts, strict=True)
    }
