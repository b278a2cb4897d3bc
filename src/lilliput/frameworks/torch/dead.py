"""Find the units of a masked torch model that are zero, and those that its norms already exclude."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.cutting import clear_
from lilliput.frameworks.torch.sidecar import narrow_of
from lilliput.graph.analysis import Analysis
from lilliput.graph.cuts import find_cuts
from lilliput.graph.dead import Zeros
from lilliput.graph.groups import Slice
from lilliput.graph.labels import Flags
from lilliput.graph.norms import find_norms


def zeros_in(parameters: Mapping[str, Tensor]) -> Zeros:
    """Return the zeros of weights or masks, for ``find_dead``; other tensors (buffers) are ignored."""

    def zeros(piece: Slice) -> Flags | None:
        tensor = parameters.get(piece.tensor)
        return None if tensor is None else _dead_indices(piece, tensor)

    return zeros


def _dead_indices(piece: Slice, tensor: Tensor) -> Flags:
    values = tensor.detach()
    if piece.units.ndim == 2:
        zero = values == 0
        parts = zero.reshape(len(piece.units), -1, zero.shape[1], zero[0, 0].numel())
        flags: Flags = parts.all(dim=3).all(dim=1).cpu().numpy()
        return flags
    size = values.shape[piece.dim]
    if not values.numel():
        return np.ones(size, bool)
    blocks = values.reshape(values.shape[: piece.dim].numel(), size, -1)
    # The largest and the smallest: several times faster than comparing every number with zero.
    high, low = (blocks.amax(0), blocks.amin(0)) if len(blocks) > 1 else (blocks[0], blocks[0])
    largest, smallest = high.amax(1), low.amin(1)
    flags = ((largest == 0) & (smallest == 0)).cpu().numpy()
    return flags


def unseen_by_norms(analysis: Analysis, model: nn.Module) -> Flags:
    """Return the classes that the norms of a masked model already exclude, or never see."""
    find = analysis.walk.labels.find
    seen: Flags = np.zeros(analysis.walk.labels.count, bool)
    for norm in find_norms(analysis):
        narrow = narrow_of(model.get_submodule(norm.path))
        kept = {} if narrow is None else {dim: keep.numpy() for dim, keep, _ in narrow.inputs}
        counted = np.unique(find(np.concatenate(norm.columns)))
        for dim, axis in enumerate(norm.source.axes):
            for column in analysis.walk.axes.tidy(axis):
                labels = column.labels[kept[dim]] if dim in kept else column.labels
                roots = find(labels)
                seen[roots[np.isin(roots, counted)]] = True
    return ~seen


@torch.no_grad()
def zero_classes(analysis: Analysis, removed: Flags, tensors: dict[str, Tensor]) -> None:
    """Set every slice of the flagged classes to zero."""
    for cut in find_cuts(analysis, removed):
        tensor = tensors[cut.tensor]
        if isinstance(tensor, nn.Parameter):
            clear_(cut, tensor)
