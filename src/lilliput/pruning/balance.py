"""``LevelPruner(mode="balance")``: remove the same number of smallest entries from every block of a weight.

Yao et al., "Balanced sparsity for efficient DNN inference on GPU", 2019: if each block keeps the same
number of weights, processors that share the blocks have equal work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.config.select import Selection
from lilliput.errors import ConfigError, Problem
from lilliput.ops.masks import prune_count
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.level import LevelMasker


def prune_blocks(score: NDArray[np.float64], block: Sequence[int], sparsity: float) -> Any:
    """Return the mask that removes the same share of each block; among equal scores, the first are kept.

    Parameters
    ----------
    score : array
        Importance of each entry; larger is kept.
    block : sequence of int
        Size of a block along each axis; it must divide the size of the axis.
    sparsity : float
        Share of each block to remove; the count is rounded to the nearest integer.

    Examples
    --------
    >>> prune_blocks(np.array([[1.0, 2.0, 4.0, 3.0], [5.0, 5.0, 0.0, 1.0]]), [1, 2], 0.5)
    array([[0., 1., 1., 0.],
           [1., 0., 0., 1.]])
    """
    split = [x for n, part in zip(score.shape, block, strict=True) for x in (n // part, part)]
    order = [*range(0, len(split), 2), *range(1, len(split), 2)]
    moved = score.reshape(split).transpose(order)
    rows = moved.reshape(-1, math.prod(block))
    kept = rows.shape[1] - prune_count(rows.shape[1], sparsity)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :kept]
    mask = np.zeros_like(rows)
    np.put_along_axis(mask, best, 1.0, axis=1)
    return mask.reshape(moved.shape).transpose(np.argsort(order)).reshape(score.shape)


def balanced(balance_gran: Any) -> type[BalancedMasker]:
    """Return a criterion that prunes each block separately.

    Parameters
    ----------
    balance_gran : list of int
        Size of a block along the last dimensions of the weight; 1 along the others.
    """
    sizes = list(balance_gran) if isinstance(balance_gran, (list, tuple)) else []
    if not sizes or not all(type(x) is int and x > 0 for x in sizes):
        raise ConfigError(
            f"balance_gran: received {balance_gran!r}, expected the sizes of a block such as [4] or [4, 4]."
        )
    return type("BalancedMasker", (BalancedMasker,), {"block": tuple(sizes)})


class BalancedMasker(LevelMasker):
    """Score weights by magnitude, and rank them within blocks."""

    keys = frozenset()
    block: tuple[int, ...] = ()

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Tensor]:
        """Return the mask that removes the same share of each block."""
        layer, score = wrapper.layer_info, self.rank(wrapper)
        xp = namespace(score)
        axes = layer.out_axis, layer.in_axis
        array = xp.to_numpy(score)
        if array.ndim > 1:
            array = np.moveaxis(array, axes, (0, 1))
        mask = prune_blocks(array, right_aligned(wrapper.name, array.shape, self.block), sparsity)
        if array.ndim > 1:
            mask = np.moveaxis(mask, (0, 1), axes)
        return {"weight_mask": xp.from_numpy(np.ascontiguousarray(mask), like=score)}

    @classmethod
    def find_problems(cls, selection: Selection) -> list[Problem]:
        """Return a problem for each rule that has one sparsity for all layers together."""
        places = [d.rule for d in selection.decisions if "total_sparsity" in d.layer.config]
        return [
            Problem(
                f"rule {rule} → total_sparsity",
                "all blocks keep the same number of weights: use 'sparsity' (per layer).",
            )
            for rule in dict.fromkeys(places)
        ]


def right_aligned(name: str, shape: Sequence[int], block: Sequence[int]) -> list[int]:
    """Return the block size along every dimension of a weight, given that of the last dimensions.

    Examples
    --------
    >>> right_aligned("fc", (8, 12), [4]), right_aligned("fc", (8, 12), [-1, 2])
    ([1, 4], [8, 2])
    """
    sizes = [1] * (len(shape) - len(block)) + list(block)
    sizes = [
        size if part == -1 else part for part, size in zip(sizes[-len(shape) :], shape, strict=True)
    ]
    if len(block) > len(shape) or any(n % part for n, part in zip(shape, sizes, strict=True)):
        raise ConfigError(
            f"layer {name!r} has a weight of {'×'.join(map(str, shape))}, which blocks of {list(block)} "
            "along its last dimensions do not divide; exclude it or choose other blocks."
        )
    return sizes
