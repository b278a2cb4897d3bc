"""Single weights in patterns: N of every M inputs, or whole blocks; what a rule's key asks for."""

from __future__ import annotations

import math

from lilliput.config.layer import LayerInfo
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.patterns import block_scores, expand_blocks, keep_n_of_m

Granularity = str | list[int]


def prune_pattern(
    score: Tensor, sparsity: float, granularity: Granularity, layer: LayerInfo
) -> Tensor:
    """Return the mask of a sparsity in a pattern.

    While a schedule is on its way to an N:M pattern, the smallest of those weights go that the
    pattern would remove; blocks go by the sum of their scores.

    Examples
    --------
    >>> import torch
    >>> score = torch.tensor([[4.0, 1.0, 2.0, 3.0], [5.0, 6.0, 7.0, 8.0]])
    >>> prune_pattern(score, 0.5, "1:2", LayerInfo("fc", "Linear", ()))
    tensor([[1., 0., 0., 1.],
            [0., 1., 0., 1.]])
    >>> prune_pattern(score, 0.5, [2, 2], LayerInfo("fc", "Linear", ()))
    tensor([[0., 0., 1., 1.],
            [0., 0., 1., 1.]])
    """
    xp = namespace(score)
    if isinstance(granularity, str):
        kept, of = map(int, granularity.split(":"))
        pattern = keep_n_of_m(score, kept, of, axis=layer.in_axis)
        most = xp.size(score) - xp.count_nonzero(pattern)
        ranked = xp.where(pattern == 0, score, math.inf)
        return prune_smallest(ranked, min(prune_count(xp.size(score), sparsity), most))
    axes = (layer.out_axis, layer.in_axis)
    score = xp.moveaxis(score, axes, (0, 1))
    blocks = block_scores(score, granularity)
    mask = prune_smallest(blocks, prune_count(xp.size(blocks), sparsity))
    return xp.moveaxis(expand_blocks(mask, granularity, xp.shape(score)), (0, 1), axes)


def find_misfit(layer: LayerInfo) -> str | None:
    """Return why the pattern of a layer's rule does not fit its weight, None if it does.

    Examples
    --------
    >>> layer = LayerInfo("fc", "Linear", (), (4, 10), config={"granularity": "2:4"})
    >>> find_misfit(layer)
    "layer 'fc' has 10 inputs, which 4 does not divide; exclude it."
    """
    granularity = layer.config.get("granularity")
    if granularity is None:
        return None
    if len(layer.shape) < 2:
        return f"layer {layer.name!r} has a weight of one axis, where there are no patterns; exclude it."
    if isinstance(granularity, str):
        size, of = layer.shape[layer.in_axis], int(granularity.split(":")[1])
        if size % of:
            return (
                f"layer {layer.name!r} has {size} inputs, which {of} does not divide; exclude it."
            )
        return None
    sides = (layer.shape[layer.out_axis], layer.shape[layer.in_axis])
    if any(size % part for size, part in zip(sides, granularity, strict=True)):
        shape, blocks = ("×".join(map(str, x)) for x in (sides, granularity))
        return (
            f"layer {layer.name!r} has {shape} outputs and inputs, which blocks of {blocks} do not "
            "divide; exclude it."
        )
    return None
