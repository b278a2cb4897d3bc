"""Erdős–Rényi-Kernel: distribute weights over layers so that small layers stay denser."""

from __future__ import annotations

import math
from collections.abc import Sequence


def erk_counts(shapes: Sequence[Sequence[int]], kept: int) -> list[int]:
    """Split ``kept`` weights over layers, with densities in proportion to ``sum(shape) / prod(shape)``.

    Evci et al. (2020), appendix: a layer with a density above 1 becomes dense, and the others
    share the rest. The counts add up to ``kept`` exactly.

    Parameters
    ----------
    shapes : sequence of sequence of int
        The shape of each layer's weight: inputs, outputs and the sides of its kernel, in any order.
    kept : int
        The total number of weights to keep, from 0 to the number of weights.

    Examples
    --------
    >>> erk_counts([(100, 100), (100, 10)], 1100)
    [710, 390]
    >>> erk_counts([(100, 100), (10, 2)], 1020)
    [1000, 20]
    """
    sizes = [math.prod(shape) for shape in shapes]
    open_ = list(range(len(shapes)))
    while True:
        left = kept - sum(size for i, size in enumerate(sizes) if i not in open_)
        scale = left / max(sum(sum(shapes[i]) for i in open_), 1)
        full = [i for i in open_ if scale * sum(shapes[i]) > sizes[i]]
        if not full:
            break
        open_ = [i for i in open_ if i not in full]
    shares = [scale * sum(shapes[i]) if i in open_ else sizes[i] for i in range(len(shapes))]
    counts = [min(int(share), size) for share, size in zip(shares, sizes, strict=True)]
    spare = [i for i in open_ if counts[i] < sizes[i]]
    spare.sort(key=lambda i: counts[i] - shares[i])  # the largest remainder first
    for i in spare[: kept - sum(counts)]:
        counts[i] += 1
    return counts
