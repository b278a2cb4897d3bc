"""``mode='balance'`` of the second stack's LevelPruner: every block of a weight loses equally many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lilliput.compat.nni.classes.arguments import Unknown
from lilliput.errors import ConfigError
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.pruning.level import LevelMasker


def balanced(balance_gran: Any) -> type[LevelMasker]:
    """Return a criterion that prunes each block of a size by itself.

    Parameters
    ----------
    balance_gran : list of int
        Sizes of a block along the last dimensions of the weight; along others it has size 1.
    """
    if isinstance(balance_gran, Unknown):  # of a program that is only read
        return BalancedMasker
    sizes = list(balance_gran) if isinstance(balance_gran, (list, tuple)) else []
    if not sizes or not all(isinstance(x, int) and x > 0 for x in sizes):
        raise ConfigError(
            f"balance_gran: received {balance_gran!r}, expected the sizes of a block such as [4] or [4, 4]."
        )
    return type("BalancedMasker", (BalancedMasker,), {"block": tuple(sizes)})


class BalancedMasker(LevelMasker):
    """Score weights by magnitude, and rank them within blocks."""

    block: tuple[int, ...] = ()

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Any]:
        """Return the mask that removes the same share of each block."""
        score: Any = self.rank(wrapper)
        blocks, order, shape = _in_blocks(wrapper.name, score, self.block)
        count = prune_count(blocks.shape[1], sparsity)
        mask = score.new_empty(blocks.shape)
        for row, block in enumerate(blocks):
            mask[row] = prune_smallest(block, count)
        back = sorted(range(len(order)), key=order.__getitem__)
        return {"weight_mask": mask.reshape(shape).permute(back).reshape(score.shape)}


def _in_blocks(
    name: str, score: Tensor, block: Sequence[int]
) -> tuple[Tensor, list[int], list[int]]:
    """Return one row per block, and how to go back: the order of split axes, and their lengths."""
    sizes = right_aligned(name, score.shape, block)
    split = [x for n, part in zip(score.shape, sizes, strict=True) for x in (n // part, part)]
    order = [*range(0, len(split), 2), *range(1, len(split), 2)]
    moved = score.reshape(split).permute(order)
    return moved.reshape(-1, math.prod(sizes)), order, list(moved.shape)


def right_aligned(name: str, shape: Sequence[int], block: Sequence[int]) -> list[int]:
    """Return the sizes of a block along every dimension of a weight, from those of the last ones.

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
