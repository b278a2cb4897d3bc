"""How sparsity grows over the epochs: pure functions of plain numbers."""

from __future__ import annotations


def cubic_sparsity(
    epoch: int, initial: float, final: float, start: int, end: int, frequency: int = 1
) -> float:
    """Return the sparsity of an epoch on the cubic schedule of Zhu & Gupta (2017), eq. 1.

    With n = (end - start) // frequency updates and k of them done,
    ``s_k = final + (initial - final) * (1 - k / n) ** 3``: fast at first, gentle at the end.
    Nothing is pruned before ``start``; between two points of the frequency grid nothing changes;
    ``final`` is met exactly at the last grid point that is not after ``end``, and kept from then on.

    Examples
    --------
    >>> [round(cubic_sparsity(e, 0.0, 0.8, start=1, end=5, frequency=2), 3) for e in range(7)]
    [0.0, 0.0, 0.0, 0.7, 0.7, 0.8, 0.8]
    """
    if epoch < start:
        return 0.0
    updates = (end - start) // frequency
    done = (epoch - start) // frequency
    if done >= updates:
        return final
    if done == 0:
        return initial
    return final + (initial - final) * (1 - done / updates) ** 3


def linear_sparsity(
    epoch: int, initial: float, final: float, start: int, end: int, frequency: int = 1
) -> float:
    """Return the sparsity of an epoch on a straight line from ``initial`` to ``final``.

    The grid of updates is that of :func:`cubic_sparsity`.

    Examples
    --------
    >>> [round(linear_sparsity(e, 0.0, 0.8, start=1, end=5, frequency=2), 3) for e in range(7)]
    [0.0, 0.0, 0.0, 0.4, 0.4, 0.8, 0.8]
    """
    if epoch < start:
        return 0.0
    updates = (end - start) // frequency
    done = (epoch - start) // frequency
    return final if done >= updates else initial + (final - initial) * done / updates
