"""Reduce values over the default process group.

Every reduction also runs in a group of one process: only without a group is it skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from lilliput.frameworks.torch.weights import local


def has_group() -> bool:
    """Whether there is a default process group, of any size."""
    return dist.is_available() and dist.is_initialized()


def processes() -> int:
    """Return the size of the default process group, 1 if there is none."""
    return dist.get_world_size() if has_group() else 1


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over the default process group, if there is one."""
    if has_group():
        tensor = tensor.clone()
        dist.all_reduce(tensor)
    return tensor


def average(tensors: Sequence[Tensor]) -> bool:
    """Average tensors in place over the default process group; False if there is none."""
    if not has_group():
        return False
    tensors = [local(tensor) for tensor in tensors]
    joined = torch.cat([tensor.detach().flatten() for tensor in tensors])
    dist.all_reduce(joined)
    joined /= dist.get_world_size()
    means = torch.split(joined, [x.numel() for x in tensors])
    for tensor, mean in zip(tensors, means, strict=True):
        tensor.copy_(mean.view_as(tensor))
    return True


def reduce(array: Any, how: str) -> Any:
    """Return the 'min', 'max' or 'sum' of a NumPy array over the default process group."""
    if not has_group():
        return array
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(array, dtype=torch.float64, device=device)
    operations = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
    dist.all_reduce(tensor, operations.get(how, dist.ReduceOp.SUM))
    return tensor.cpu().numpy()
