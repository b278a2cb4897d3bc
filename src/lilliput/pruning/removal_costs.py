"""The cost of removing channels if the layers that read them are refitted: pure NumPy.

A layer reads channels ``x`` with covariance ``C``; of its weights, ``H = WᵀW`` is kept. If the layer is
refitted to the remaining channels, removing channel ``i`` increases its squared error by
``H_ii / (C⁻¹)_ii``, where ``W`` and ``C⁻¹`` are those of the channels left (Hassibi & Stork, "Second order
derivatives for network pruning: optimal brain surgeon", 1993). For uncorrelated channels this is the
variance of the channel times the energy of the weights that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_RIDGE = 1e-4  # of the mean variance: directions without data get a small nonzero cost
_PER_ROW = 0.1  # added to _RIDGE, times inputs per row
_ROUNDS = 128  # channels are removed in this many rounds, a few at a time


@dataclass
class Reading:
    """How one layer reads the units of a group.

    Parameters
    ----------
    covariance : array
        Covariance of its inputs.
    energy : array
        ``WᵀW`` of its weights, over outputs and taps.
    units : array of int
        The unit that each input belongs to, -1 for those that stay.
    rows : float
        Number of observations that the covariance was estimated from.
    """

    covariance: Array
    energy: Array
    units: Indices
    rows: float = np.inf

    def __post_init__(self) -> None:
        # With fewer rows than inputs, channels look like linear combinations of the others.
        share = _RIDGE + _PER_ROW * len(self.covariance) / self.rows
        ridge = share * max(float(self.covariance.diagonal().mean()), 1e-30)
        self._inverse = np.linalg.inv(self.covariance + ridge * np.eye(len(self.covariance)))
        self._energy = self.energy.copy()
        self._units = self.units.copy()

    def costs(self, size: int) -> Array:
        """Return the current removal cost of each unit; units that the layer does not read cost nothing."""
        costs = np.zeros(size)
        counts = np.bincount(self._units[self._units >= 0], minlength=size)
        for width in np.unique(counts[counts > 0]):
            units = np.flatnonzero(counts == width)
            order = np.argsort(self._units, kind="stable")
            places = order[np.searchsorted(self._units[order], units)[:, None] + np.arange(width)]
            rows, columns = places[:, :, None], places[:, None]
            blocks, energies = self._inverse[rows, columns], self._energy[rows, columns]
            costs[units] = np.einsum("uij,uji->u", np.linalg.inv(blocks), energies)
        return costs

    def remove(self, units: Indices) -> None:
        """Remove these units and refit the layer to the remaining ones."""
        gone = np.isin(self._units, units)
        if not gone.any():
            return
        inverse, energy = self._inverse, self._energy
        take_over = np.linalg.solve(inverse[np.ix_(gone, gone)], inverse[gone][:, ~gone])
        crossed = energy[np.ix_(~gone, gone)] @ take_over
        self._energy = (
            energy[np.ix_(~gone, ~gone)]
            - crossed
            - crossed.T
            + take_over.T @ energy[np.ix_(gone, gone)] @ take_over
        )
        self._inverse = inverse[np.ix_(~gone, ~gone)] - inverse[~gone][:, gone] @ take_over
        self._units = self._units[~gone]


def removal_costs(readings: Sequence[Reading], size: int) -> Array:
    """Return the cost of each unit at the time of its removal, if the cheapest is always removed first.

    Each cost accounts for the units removed before, so that of two identical units one is cheap
    and the other is not.

    Examples
    --------
    >>> same = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    >>> costs = removal_costs([Reading(same, np.eye(3), np.arange(3))], 3)
    >>> bool(costs[:2].min() < 0.001), bool(costs[:2].max() > 0.9), round(float(costs[2]), 3)
    (True, True, 0.5)
    """
    found, left, floor = np.zeros(size), np.arange(size), 0.0
    step = max(1, size // _ROUNDS)
    while len(left):
        costs = sum(reading.costs(size) for reading in readings)
        now = np.asarray(costs)[left]
        chosen = np.argsort(now, kind="stable")[:step]
        found[left[chosen]] = np.maximum(now[chosen], floor)
        floor = float(found[left[chosen]].max()) * (1 + 1e-12)  # units removed later rank higher
        for reading in readings:
            reading.remove(left[chosen])
        left = np.delete(left, chosen)
    return found
