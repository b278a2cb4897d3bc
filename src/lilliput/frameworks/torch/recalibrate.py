"""The batch norms of a torch model and their inputs; see ``recovery/recalibrate.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.batches import call as call
from lilliput.frameworks.torch.modes import evaluating
from lilliput.frameworks.torch.process_group import sum_over_processes
from lilliput.frameworks.torch.wrapper import QuantizerModuleWrapper

NAMES_MAY_DIFFER = False

_Norm = nn.modules.batchnorm._BatchNorm


def norms_of(model: nn.Module) -> dict[str, Any]:
    """Return the batch norms of a model that have running statistics."""
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, _Norm)]
    return {name: norm for name, norm in named if norm.running_mean is not None}


def quantizers_in(model: nn.Module) -> list[Any]:
    """Return the wrappers of quantizers in a model, including copies."""
    return [module for module in model.modules() if isinstance(module, QuantizerModuleWrapper)]


def statistics(norm: Any) -> tuple[Tensor, Tensor]:
    """Return copies of the running statistics of a norm."""
    return norm.running_mean.double().clone(), norm.running_var.double().clone()


@torch.no_grad()
def write(norm: Any, mean: Tensor, variance: Tensor) -> None:
    """Set the statistics of a norm."""
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


def epsilon(norm: Any) -> float:
    """Return the epsilon that a norm adds to the variance."""
    return float(norm.eps)


def over_processes(total: Any, squares: Any, count: int) -> tuple[Any, Any, int]:
    """Return the sums over all processes; either all of them have seen every norm, or none has."""
    if not count:
        return total, squares, count
    summed = sum_over_processes(torch.cat([total, squares, total.new_tensor([count])]))
    total, squares = summed[:-1].chunk(2)
    return total, squares, int(summed[-1])


@contextmanager
def watching(
    watched: Sequence[tuple[str, Any, Callable[[Any], None]]], models: Sequence[nn.Module]
) -> Iterator[None]:
    """Pass norms' inputs, one row per channel, to functions; all models are in eval mode."""
    handles = [norm.register_forward_pre_hook(_hook(see)) for _, norm, see in watched]
    try:
        with evaluating(*models), torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(see: Callable[[Tensor], None]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    return lambda norm, args: see(args[0].detach().transpose(0, 1).flatten(1).double())
