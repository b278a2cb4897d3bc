"""Which units of a masked model do nothing any more: all their slices are zero."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.backends.torch.sidecar import narrow_of
from lilliput.speedup.analysis import Analysis
from lilliput.speedup.cuts import find_cuts
from lilliput.speedup.groups import ChannelGroups, Group, Slice
from lilliput.speedup.labels import Flags
from lilliput.speedup.norms import find_norms


def find_dead(
    groups: ChannelGroups, parameters: Mapping[str, Tensor], only_outputs: bool = False
) -> dict[str, Flags]:
    """Return, per group, the units whose slices are zero: all of them, or those that make them.

    ``parameters`` holds weights or their masks; tensors that are not in it (buffers) do not count.
    """
    return {group.name: _dead_units(group, parameters, only_outputs) for group in groups.groups}


def _dead_units(group: Group, parameters: Mapping[str, Tensor], only_outputs: bool) -> Flags:
    dead: Flags = np.ones(group.size, bool)
    seen: Flags = np.zeros(group.size, bool)
    for piece in group.slices:
        tensor = parameters.get(piece.tensor)
        if tensor is None or (only_outputs and not piece.is_output):
            continue
        inside = piece.units >= 0
        np.logical_and.at(dead, piece.units[inside], _dead_indices(piece, tensor)[inside])
        seen[piece.units[inside]] = True
    return dead & seen


def _dead_indices(piece: Slice, tensor: Tensor) -> Flags:
    zero = tensor.detach() == 0
    if piece.units.ndim == 2:
        parts = zero.reshape(len(piece.units), -1, zero.shape[1], zero[0, 0].numel())
        flags: Flags = parts.all(dim=3).all(dim=1).cpu().numpy()
        return flags
    rows = zero.movedim(piece.dim, 0).reshape(zero.shape[piece.dim], -1)
    flags = rows.all(dim=1).cpu().numpy()
    return flags


def unseen_by_norms(analysis: Analysis, model: nn.Module) -> Flags:
    """Return the classes that the norms of a live model leave out already, or never see."""
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
            cut.clear_(tensor)
