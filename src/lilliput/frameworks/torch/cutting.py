"""Apply cuts to torch tensors and modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.graph.cuts import Cut, by_tensor, in_turn

_BLOCK = 131_072  # numbers


def part_of(cut: Cut, tensor: Tensor) -> Tensor:
    """Return the part of a tensor that stays."""
    keep = _indices(cut, tensor)
    if keep.dim() == 1:
        return tensor.index_select(cut.dim, keep)
    groups, count = keep.shape
    parts = tensor.reshape(groups, -1, *tensor.shape[1:])
    view = (groups, 1, count, *[1] * (tensor.dim() - 2))
    shape = (groups, parts.shape[1], count, *tensor.shape[2:])
    taken: Tensor = parts.gather(2, keep.view(view).expand(shape))
    return taken.flatten(0, 1)


def _indices(cut: Cut, tensor: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(cut.keep)).to(tensor.device)


def clear_(cut: Cut, tensor: Tensor) -> None:
    """Set the removed part to zero, in place."""
    parts = [(cut.dim, tensor, cut.keep)]
    if cut.keep.ndim == 2:
        groups = torch.unflatten(tensor, 0, (len(cut.keep), -1))
        parts = [(1, part, keep) for part, keep in zip(groups, cut.keep, strict=True)]
    for dim, part, keep in parts:
        gone = np.setdiff1d(np.arange(part.shape[dim]), keep)
        part.index_fill_(dim, torch.from_numpy(gone).to(part.device), 0)


@torch.no_grad()
def apply_cuts(module: nn.Module, cuts: Iterable[Cut]) -> None:
    """Cut a module's parameters and buffers in place; they remain the same objects."""
    tensors = named_tensors(module)
    for name, listed in by_tensor(cuts).items():
        tensor = tensors[name]
        gradient = tensor.grad
        tensor.grad = None
        smaller = cut_all(tensor.data, listed)
        # Autograd caches the shape of a parameter until its type changes.
        other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
        tensor.data = tensor.data.new_empty(0, dtype=other)
        tensor.data = smaller
        if gradient is not None:
            tensor.grad = cut_all(gradient, listed)
    for child in module.modules():
        if isinstance(child, nn.RNNBase):
            child._init_flat_weights()


def cut_all(tensor: Tensor, cuts: list[Cut]) -> Tensor:
    """Return the part of a tensor that several cuts leave, in its own memory."""
    layout = torch.contiguous_format
    if not tensor.is_contiguous() and tensor.dim() in (4, 5):
        layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    first = sorted(cuts, key=lambda cut: cut.dim)
    if [(cut.dim, cut.keep.ndim) for cut in first] == [(0, 1), (1, 1)]:
        rows, columns = (_indices(cut, tensor) for cut in first)
        return _crossing(tensor, rows, columns).contiguous(memory_format=layout)
    for cut in in_turn(cuts):
        tensor = part_of(cut, tensor)
    return tensor.contiguous(memory_format=layout) if cuts else tensor.clone(memory_format=layout)


def _crossing(tensor: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return where rows and columns cross, with few of the whole rows in memory at a time."""
    found = tensor.new_empty(len(rows), len(columns), *tensor.shape[2:])
    step = max(1, _BLOCK // max(1, tensor.shape[1:].numel()))
    for part, taken in zip(torch.split(found, step), torch.split(rows, step), strict=True):
        part.copy_(tensor.index_select(0, taken).index_select(1, columns))
    return found


def named_tensors(module: nn.Module) -> dict[str, Any]:
    """Return every parameter and buffer by all of its names."""
    return {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """Return names and shapes of a model's parameters and buffers."""
    return {name: list(tensor.shape) for name, tensor in named_tensors(model).items()}
