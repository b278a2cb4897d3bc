"""How many multiplications a layer takes, where several places count and must agree."""

from __future__ import annotations

from collections.abc import Iterable


def recurrent_macs(rows: int, matrices: Iterable[int]) -> int:
    """Return the multiplications of a recurrent layer: every matrix, at every step of every example.

    Parameters
    ----------
    rows : int
        Steps times examples.
    matrices : iterable of int
        The number of entries of each matrix: input, state, projection, of all layers and directions.

    Examples
    --------
    >>> recurrent_macs(5 * 2, [16 * 3, 16 * 4])  # an LSTM from 3 to 4, 5 steps of 2 examples
    1120
    """
    return rows * sum(matrices)
