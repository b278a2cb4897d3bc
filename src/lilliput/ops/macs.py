"""How many multiplications a layer takes, where several places count and must agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod


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


def einsum_macs(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """Return the multiplications of a product by its equation, of two operands after the other.

    Each combination of indices takes one. An operand alone is summed or turned, and takes none.

    Examples
    --------
    >>> einsum_macs("abc,cd->abd", [(2, 3, 4), (4, 5)]), einsum_macs("...x,xy->...y", [(2, 3), (3, 5)])
    (120, 30)
    """
    left, _, right = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    terms = []
    for term, shape in zip(left.split(","), shapes, strict=True):
        others = len(shape) - len(term.replace("...", ""))
        indices = term.replace("...", "".join(chr(0x100 + i) for i in range(others)))
        terms.append(set(indices))
        for index, size in zip(indices, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    total, held = 0, terms[0]
    for i in range(1, len(terms)):
        used = held | terms[i]
        total += prod(sizes[index] for index in used)
        open_ = {index for index in used if ord(index) >= 0x100}
        held = used & open_.union(right, *terms[i + 1 :])
    return total
