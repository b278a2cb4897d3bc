"""Multiplications of layers, computed from sizes alone, for graphs, files and reports."""

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


def attention_macs(queries: int, keys: int, key_size: int, value_size: int) -> int:
    """Return the multiplications of attention: queries times keys, and the result times values.

    Parameters
    ----------
    queries : int
        Number of queries, over all heads and examples.
    keys : int
        Number of keys that each query is compared with.
    key_size, value_size : int
        The length of a key, and of a value.

    Examples
    --------
    >>> attention_macs(2 * 4 * 10, 10, 16, 16)  # 2 examples, 4 heads of size 16, 10 positions
    25600
    """
    return queries * keys * (key_size + value_size)


def einsum_macs(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """Return the multiplications of an einsum, contracting its operands from left to right.

    Each combination of indices takes one. A single operand is only summed or transposed, and takes none.

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
