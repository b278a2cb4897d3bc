"""Hardware-friendly masks: N of every M weights, and whole blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lilliput.errors import AlgorithmError
from lilliput.ops.namespace import Tensor, namespace


def keep_n_of_m(score: Tensor, n: int, m: int, axis: int) -> Tensor:
    """Return a mask that keeps the ``n`` largest of every ``m`` consecutive entries along an axis.

    Parameters
    ----------
    score : tensor
        Importance of each entry; larger is kept, and among equal scores the first. Must not contain
        NaN.
    n, m : int
        How many to keep, from 0 to ``m``, and the length of a group, at least 1.
    axis : int
        Axis of the groups; ``m`` must divide its length.

    Examples
    --------
    >>> import torch
    >>> keep_n_of_m(torch.tensor([[3.0, 1.0, 2.0, 4.0], [5.0, 5.0, 5.0, 5.0]]), 2, 4, axis=1)
    tensor([[1., 0., 0., 1.],
            [1., 1., 0., 0.]])
    """
    xp = namespace(score)
    shape = tuple(xp.shape(score))
    if m < 1 or not 0 <= n <= m:
        raise AlgorithmError(
            f"received n={n} and m={m}, expected m of 1 or more and n from 0 to m."
        )
    if not -len(shape) <= axis < len(shape):
        raise AlgorithmError(f"axis {axis} does not exist in the shape {shape}.")
    axis %= len(shape)
    _check_divides(m, shape[axis], f"axis {axis}", shape)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    groups = xp.reshape(score, (outer, shape[axis] // m, m, inner))
    lanes = [groups[:, :, j] for j in range(m)]
    kept = []
    for j, lane in enumerate(lanes):
        ahead = xp.zeros_like(lane)
        for other in lanes[:j]:
            ahead = ahead + xp.to_float(other >= lane, like=score)  # among equal scores, the first
        for other in lanes[j + 1 :]:
            ahead = ahead + xp.to_float(other > lane, like=score)
        kept.append(xp.to_float(ahead < n, like=score))
    return xp.reshape(xp.stack(kept, axis=2), shape)


def block_scores(score: Tensor, block: Sequence[int]) -> Tensor:
    """Return the sum of the scores in each 2-D block of the first two axes.

    Further axes, those of a kernel, are summed over.

    Parameters
    ----------
    score : tensor
        Importance of each entry, with two axes or more.
    block : (rows, columns)
        Size of a block; must divide the first two axes.

    Examples
    --------
    >>> import torch
    >>> block_scores(torch.arange(8.0).reshape(2, 4), (2, 2))
    tensor([[10., 18.]])
    """
    xp = namespace(score)
    shape = tuple(xp.shape(score))
    rows, columns = _block_size(block, shape)
    blocks = (shape[0] // rows, rows, shape[1] // columns, columns, math.prod(shape[2:]))
    return xp.sum(xp.reshape(score, blocks), axis=(1, 3, 4))


def expand_blocks(block_mask: Tensor, block: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return the mask of a whole weight from one entry per block.

    Parameters
    ----------
    block_mask : tensor
        One entry per block, in the shape that :func:`block_scores` returns.
    block : (rows, columns)
        Size of a block.
    shape : sequence of int
        Shape of the weight.

    Examples
    --------
    >>> import torch
    >>> expand_blocks(torch.tensor([[0.0, 1.0]]), (2, 2), (2, 4))
    tensor([[0., 0., 1., 1.],
            [0., 0., 1., 1.]])
    """
    xp = namespace(block_mask)
    shape = tuple(shape)
    rows, columns = _block_size(block, shape)
    expected = (shape[0] // rows, shape[1] // columns)
    if tuple(xp.shape(block_mask)) != expected:
        raise AlgorithmError(
            f"received a block mask of shape {tuple(xp.shape(block_mask))}, expected {expected} for "
            f"blocks of {rows}×{columns} in the shape {shape}."
        )
    plane = xp.repeat(xp.repeat(block_mask, rows, axis=0), columns, axis=1)
    kernel = math.prod(shape[2:])
    return xp.reshape(xp.repeat(xp.reshape(plane, (*shape[:2], 1)), kernel, axis=2), shape)


def _block_size(block: Sequence[int], shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise AlgorithmError(f"blocks need two axes or more, received the shape {shape}.")
    if len(block) != 2 or min(block) < 1:
        raise AlgorithmError(f"received block={block!r}, expected two numbers of 1 or more.")
    rows, columns = block
    _check_divides(rows, shape[0], "axis 0", shape)
    _check_divides(columns, shape[1], "axis 1", shape)
    return rows, columns


def _check_divides(part: int, length: int, place: str, shape: tuple[int, ...]) -> None:
    if length % part:
        raise AlgorithmError(
            f"{place} of the shape {shape} has {length} entries, which groups of {part} do not "
            "divide; exclude this layer or choose another size."
        )
