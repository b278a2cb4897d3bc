"""From scores to masks: exact counts, ties broken by position."""

from __future__ import annotations

from collections.abc import Sequence

from lilliput.ops.namespace import Tensor, namespace


def prune_count(size: int, sparsity: float) -> int:
    """Return how many of ``size`` entries to remove for a sparsity, rounded to the nearest integer.

    Examples
    --------
    >>> prune_count(1000, 0.8), prune_count(3, 0.5)
    (800, 2)
    """
    return round(size * sparsity)


def prune_smallest(score: Tensor, count: int) -> Tensor:
    """Return a mask of ones with exactly ``count`` zeros, at the smallest scores.

    If several entries share the score at the border, the first ones are kept, so the
    result depends only on the scores.

    Parameters
    ----------
    score : tensor
        Importance of each entry; larger is kept. Must not contain NaN.
    count : int
        Number of zeros, from 0 to the size of ``score``.

    Examples
    --------
    >>> import torch
    >>> prune_smallest(torch.tensor([3.0, 1.0, 2.0, 1.0]), 1)
    tensor([1., 1., 1., 0.])
    """
    xp = namespace(score)
    if count <= 0:
        return xp.ones_like(score)
    if count >= xp.size(score):
        return xp.zeros_like(score)
    flat = xp.flatten(score)
    border = xp.kth_smallest(flat, count)
    keep = flat > border
    spare = xp.size(score) - count - xp.count_nonzero(keep)
    if spare:
        keep = keep | xp.first_true(flat == border, spare)
    return xp.to_float(xp.reshape(keep, xp.shape(score)), like=score)


def share_count(scores: Sequence[Tensor], count: int, caps: Sequence[int]) -> list[int]:
    """Split ``count`` removals over several layers by ranking all their scores together.

    Parameters
    ----------
    scores : sequence of tensor
        One per layer.
    count : int
        The total number of entries to remove.
    caps : sequence of int
        The most that may be removed from each layer; the rest is removed from the others.

    Returns
    -------
    list of int
        Removals per layer; they add up to ``min(count, sum(caps))``.

    Examples
    --------
    >>> import torch
    >>> share_count([torch.tensor([1.0, 9.0]), torch.tensor([2.0, 3.0])], 2, [2, 2])
    [1, 1]
    """
    xp = namespace(scores[0])
    sizes = [xp.size(score) for score in scores]
    shares = [0] * len(scores)
    open_ = [i for i, cap in enumerate(caps) if cap > 0]
    left = min(count, sum(caps))
    while left and open_:
        budget = left + sum(shares[i] for i in open_)
        joined = xp.concat([xp.flatten(scores[i]) for i in open_])
        mask = prune_smallest(joined, budget)
        start = 0
        for i in open_:
            shares[i] = sizes[i] - xp.count_nonzero(mask[start : start + sizes[i]])
            start += sizes[i]
        full = [i for i in open_ if shares[i] > caps[i]]
        for i in full:
            shares[i] = caps[i]
        open_ = [i for i in open_ if i not in full]
        left = min(count, sum(caps)) - sum(shares)
        if not full:
            break
    return shares
