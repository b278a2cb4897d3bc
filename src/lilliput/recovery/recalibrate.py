"""Re-estimate the statistics of batch norms, which pruning has made wrong.

A batch norm normalizes by the mean and variance that its input had while the model was trained. Where
channels before it were removed, its input has others; a few batches show which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.backends.torch.batches import call
from lilliput.backends.torch.statistics import Snapshot, sum_over_processes
from lilliput.backends.torch.wrapper import QuantizerModuleWrapper
from lilliput.recovery.norms import Moments, check_model, statistics_of

_Norm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> None:
    """Re-estimate the running statistics of all batch norms from a few batches.

    Use it after pruning a model that is not trained any further; a few hundred examples are enough.
    Every example counts the same, however they are batched. Norms see each batch as they do in
    training; dropout is off, and all modes are restored.

    Parameters
    ----------
    model : torch.nn.Module
        A pruned model, masked or cut; changed in place.
    batches : iterable
        A data loader or a list, with batches of at least 16 or so.
    forward : callable, optional
        ``forward(model, batch)``. By default a tensor or dict is what the model is called with, and
        of a tuple ``(inputs, targets)`` the inputs.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    >>> recalibrate(model, [torch.randn(16, 2), torch.randn(16, 2)])
    """
    named = [(n, m) for n, m in model.named_modules() if isinstance(m, _Norm)]
    norms: dict[Any, str] = {m: name for name, m in named if m.running_mean is not None}
    quantizers = [m for m in model.modules() if isinstance(m, QuantizerModuleWrapper)]
    check_model(model, norms, quantizers)
    moments = {norm: _empty(norm, name) for norm, name in norms.items()}
    _run_with_batch_statistics(model, moments, batches, forward)
    found = statistics_of(_in_all_processes(seen) for seen in moments.values())
    for norm, statistics in zip(moments, found, strict=True):
        if statistics is not None:  # a norm that no batch reaches keeps its own
            norm.running_mean.copy_(statistics[0])
            norm.running_var.copy_(statistics[1])


def _empty(norm: Any, name: str) -> Moments:
    zeros = torch.zeros_like(norm.running_mean, dtype=torch.float64)
    return Moments(name, zeros, zeros)


def _in_all_processes(seen: Moments) -> Moments:
    number = seen.total.new_tensor([seen.count])
    summed = sum_over_processes(torch.cat([seen.total, seen.squares, number]))
    total, squares = summed[:-1].chunk(2)
    return Moments(seen.name, total, squares, int(summed[-1]))


def _see(seen: Moments) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """Return a forward pre-hook that takes what a norm is given into account."""
    return lambda norm, args: seen.add(args[0].detach().transpose(0, 1).flatten(1).double())


def _run_with_batch_statistics(
    model: nn.Module,
    moments: dict[Any, Moments],
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None,
) -> None:
    """Run batches in eval mode, but with each norm normalizing by its batch."""
    before = Snapshot(nn.ModuleList(moments))
    modes = {module: module.training for module in model.modules()}
    handles = [norm.register_forward_pre_hook(_see(seen)) for norm, seen in moments.items()]
    model.eval()
    try:
        for norm in moments:
            norm.training = True
        for batch in batches:
            (forward or call)(model, batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, is_training in modes.items():
            module.training = is_training
        before.restore()
