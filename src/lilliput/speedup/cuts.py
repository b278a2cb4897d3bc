"""Cuts: which indices of which tensors stay, and taking the others out of a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.speedup.analysis import Analysis
from lilliput.speedup.labels import Flags, Indices


@dataclass(frozen=True, eq=False)
class Cut:
    """The indices of one dimension of one tensor that stay.

    ``keep`` has two dimensions, (groups, inputs per group), where each group of filters keeps
    inputs of its own.
    """

    tensor: str
    dim: int
    keep: Indices

    def of(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that stays."""
        keep = torch.from_numpy(np.ascontiguousarray(self.keep)).to(tensor.device)
        if keep.dim() == 1:
            return tensor.index_select(self.dim, keep)
        groups, count = keep.shape
        parts = tensor.reshape(groups, -1, *tensor.shape[1:])
        view = (groups, 1, count, *[1] * (tensor.dim() - 2))
        shape = (groups, parts.shape[1], count, *tensor.shape[2:])
        taken: Tensor = parts.gather(2, keep.view(view).expand(shape))
        return taken.flatten(0, 1)

    def within(self, prefix: str) -> Cut:
        """Return the cut as a module at that prefix sees it."""
        return Cut(self.tensor.removeprefix(prefix), self.dim, self.keep)

    def clear_(self, tensor: Tensor) -> None:
        """Set what goes to zero, in place."""
        parts = [(self.dim, tensor, self.keep)]
        if self.keep.ndim == 2:
            groups = torch.unflatten(tensor, 0, (len(self.keep), -1))
            parts = [(1, part, keep) for part, keep in zip(groups, self.keep, strict=True)]
        for dim, part, keep in parts:
            gone = np.setdiff1d(np.arange(part.shape[dim]), keep)
            part.index_fill_(dim, torch.from_numpy(gone).to(part.device), 0)


def find_cuts(analysis: Analysis, removed: Flags) -> list[Cut]:
    """Return the cuts that remove the flagged classes."""
    cuts, walk = [], analysis.walk
    for name, value in analysis.axes.items():
        if name in walk.ragged:
            rows = walk.ragged[name]
            gone = removed[walk.labels.find(rows.ravel())].reshape(rows.shape)
            if gone.any():
                kept_rows = np.stack([np.flatnonzero(~row) for row in gone])
                cuts.append(Cut(name, 1, kept_rows))
        for dim in range(len(value.shape)):
            if dim == 1 and name in walk.ragged:
                continue
            keep = analysis.kept(value, dim, removed)
            if not keep.all():
                cuts.append(Cut(name, dim, np.flatnonzero(keep)))
    return cuts


def in_order(analysis: Analysis, removed: Flags, cuts: Iterable[Cut]) -> Iterator[Cut]:
    """Yield cuts with what they keep in the order in which shuffles of fewer channels expect it."""
    orders: dict[tuple[str, int], Indices] = {}
    for stage in analysis.stages:
        if removed[stage.roots].any():
            orders |= stage.orders(removed)
    for cut in cuts:
        yield replace(cut, keep=orders.get((cut.tensor, cut.dim), cut.keep))


def balance(analysis: Analysis, removed: Flags) -> Flags:
    """Take back removals until every balance holds: what is kept too much is zero, so it is exact."""
    removed = removed.copy()
    find = analysis.walk.labels.find
    rows = [[find(row) for row in x.rows] for x in analysis.walk.balances]
    changed = True
    while changed:
        changed = False
        for balanced in rows:
            counts = [int(removed[row].sum()) for row in balanced]
            for row, count in zip(balanced, counts, strict=True):
                if count > min(counts):
                    gone = np.unique(row[removed[row]])
                    removed[gone[-1:]] = False
                    changed = True
                    break
    for stage in analysis.stages:
        removed = stage.settle(removed)
    return removed


@torch.no_grad()
def apply_cuts(module: nn.Module, cuts: Iterable[Cut]) -> None:
    """Cut a module's parameters and buffers in place; they stay the same objects."""
    tensors = named_tensors(module)
    for name, listed in by_tensor(cuts).items():
        tensor = tensors[name]
        gradient = tensor.grad
        tensor.grad = None
        smaller = cut_all(tensor.data, listed)
        # Autograd remembers the shape of a parameter until its type changes.
        other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
        tensor.data = tensor.data.new_empty(0, dtype=other)
        tensor.data = smaller
        if gradient is not None:
            tensor.grad = cut_all(gradient, listed)
    for child in module.modules():
        if isinstance(child, nn.RNNBase):
            child._init_flat_weights()


def by_tensor(cuts: Iterable[Cut]) -> dict[str, list[Cut]]:
    """Return the cuts of each tensor together."""
    found: dict[str, list[Cut]] = {}
    for cut in cuts:
        found.setdefault(cut.tensor, []).append(cut)
    return found


def cut_all(tensor: Tensor, cuts: list[Cut]) -> Tensor:
    """Return what several cuts leave of one tensor, in memory of its own."""
    layout = torch.contiguous_format
    if not tensor.is_contiguous() and tensor.dim() in (4, 5):
        layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    for cut in sorted(cuts, key=lambda c: -c.keep.ndim):  # groups are counted before filters go
        tensor = cut.of(tensor)
    return tensor.clone(memory_format=layout)


def named_tensors(module: nn.Module) -> dict[str, Any]:
    """Return every parameter and buffer by all of its names."""
    return {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """Return names and shapes of a model's parameters and buffers."""
    return {name: list(tensor.shape) for name, tensor in named_tensors(model).items()}
