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
from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError

_Norm = nn.modules.batchnorm._BatchNorm


class _Moments:
    """Sum, sum of squares and number of what each channel of a batch norm has seen."""

    def __init__(self, norm: Any) -> None:
        zeros = torch.zeros_like(norm.running_mean, dtype=torch.float64)
        self.total, self.squares, self.count = zeros, zeros.clone(), 0

    def see(self, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Take a batch into account; a forward pre-hook."""
        rows = args[0].detach().transpose(0, 1).flatten(1).double()
        self.total = self.total + rows.sum(1)
        self.squares = self.squares + rows.square().sum(1)
        self.count += rows.shape[1]

    def write(self, norm: Any) -> None:
        """Give the norm the mean and the unbiased variance of everything seen, in all processes."""
        number = self.total.new_tensor([self.count])
        seen = sum_over_processes(torch.cat([self.total, self.squares, number]))
        (total, squares), count = seen[:-1].chunk(2), seen[-1]
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0) * count / (count - 1).clamp(min=1)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)


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
    norms = [m for m in model.modules() if isinstance(m, _Norm) and m.running_mean is not None]
    if not norms:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no batch norms with running statistics, so there is nothing to "
            "recalibrate; reconstruct() works for models without them."
        )
    if any(isinstance(module, QuantizerModuleWrapper) for module in model.modules()):
        raise StageError(
            "recalibrate() came after a quantizer, whose scales belong to the statistics as they were; "
            "recalibrate first, quantize then."
        )
    moments = {norm: _Moments(norm) for norm in norms}
    _run_with_batch_statistics(model, moments, batches, forward)
    for norm, seen in moments.items():
        if seen.count:  # a norm that no batch reaches keeps its statistics
            seen.write(norm)
    if not any(seen.count for seen in moments.values()):
        raise AlgorithmError("recalibrate(): no batch was run, or none reached a batch norm.")


def _run_with_batch_statistics(
    model: nn.Module,
    moments: dict[Any, _Moments],
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None,
) -> None:
    """Run batches in eval mode, but with each norm normalizing by its batch."""
    before = Snapshot(nn.ModuleList(moments))
    modes = {module: module.training for module in model.modules()}
    handles = [norm.register_forward_pre_hook(seen.see) for norm, seen in moments.items()]
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
