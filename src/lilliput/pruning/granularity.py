"""Sparsity patterns of a rule's ``granularity``: N of every M inputs, or whole blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.errors import Problem
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.patterns import block_scores, expand_blocks, keep_n_of_m

Granularity = str | list[int]


def prune_pattern(
    score: Tensor, sparsity: float, granularity: Granularity, layer: LayerInfo
) -> Tensor:
    """Return the mask of a sparsity in a pattern.

    Before a schedule reaches the N:M pattern, it removes the smallest of the weights that the
    pattern would remove; blocks are ranked by the sum of their scores.

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
        pattern = keep_n_of_m(score, *counts_of(granularity), axis=layer.in_axis)
        most = xp.size(score) - xp.count_nonzero(pattern)
        ranked = xp.where(pattern == 0, score, math.inf)
        return prune_smallest(ranked, min(prune_count(xp.size(score), sparsity), most))
    blocks = sum_blocks(score, granularity, layer)
    mask = prune_smallest(blocks, prune_count(xp.size(blocks), sparsity))
    return spread_blocks(mask, granularity, layer, xp.shape(score))


def counts_of(pattern: str) -> tuple[int, int]:
    """Return N and M of a pattern.

    Examples
    --------
    >>> counts_of("2:4")
    (2, 4)
    """
    kept, of = map(int, pattern.split(":"))
    return kept, of


def block_of(layer: LayerInfo) -> list[int] | None:
    """Return the block size that a layer's rule requests, or None."""
    granularity = layer.config.get("granularity")
    return None if isinstance(granularity, str) else granularity


def sum_blocks(score: Tensor, block: list[int], layer: LayerInfo) -> Tensor:
    """Return the sum of scores in each block of outputs and inputs, whichever axes those are."""
    axes = (layer.out_axis, layer.in_axis)
    return block_scores(namespace(score).moveaxis(score, axes, (0, 1)), block)


def spread_blocks(
    blocks: Tensor, block: list[int], layer: LayerInfo, shape: Sequence[int]
) -> Tensor:
    """Return one entry per block as one per weight, in the shape of the layer's weight."""
    axes = (layer.out_axis, layer.in_axis)
    kernel = [n for i, n in enumerate(shape) if i not in [axis % len(shape) for axis in axes]]
    shape = (*(shape[axis] for axis in axes), *kernel)
    return namespace(blocks).moveaxis(expand_blocks(blocks, block, shape), (0, 1), axes)


def find_patterns(selection: Selection, why: str) -> list[Problem]:
    """Return a problem for each rule with an N:M pattern, for algorithms that do not support it."""
    found = [
        Problem(f"rule {decision.rule} → granularity", f"no N:M pattern is possible: {why}.")
        for decision in selection.decisions
        if decision.is_chosen and isinstance(decision.layer.config.get("granularity"), str)
    ]
    return list(dict.fromkeys(found))


def find_misfits(selection: Selection) -> list[Problem]:
    """Return a problem for each layer whose size is not a multiple of its pattern."""
    return [
        Problem(f"rule {decision.rule} → granularity", text)
        for decision in selection.decisions
        if decision.is_chosen and (text := find_misfit(decision.layer))
    ]


def find_misfit(layer: LayerInfo) -> str | None:
    """Return why the pattern of a layer's rule does not fit its weight, or None if it does.

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
        return (
            f"layer {layer.name!r} has a one-dimensional weight, which has no patterns; exclude it."
        )
    if isinstance(granularity, str):
        size, (_, of) = layer.shape[layer.in_axis], counts_of(granularity)
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
