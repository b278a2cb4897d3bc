"""Re-estimate the statistics of batch norms, which pruning has made wrong.

A batch norm normalizes by the mean and variance that its input had while the model was trained. Where
channels before it were removed, its input has others; a few batches show which. With the original, only
what pruning has changed is corrected; without it, the batches must be like those of the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.batches import call
from lilliput.frameworks.torch.statistics import Snapshot, sum_over_processes
from lilliput.frameworks.torch.wrapper import QuantizerModuleWrapper
from lilliput.recovery.norms import Moments, Renewal, check_model, check_original, renew

_Norm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None = None,
    *,
    original: nn.Module | None = None,
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
        A data loader or a list, with batches of at least 16 or so. Without ``original`` they must be
        like those that the model was trained on, all classes included: a norm takes over what it sees.
    forward : callable, optional
        ``forward(model, batch)``. By default a tensor or dict is what the model is called with, and
        of a tuple ``(inputs, targets)`` the inputs.
    original : torch.nn.Module, optional
        The model before it was pruned. Each norm then puts out, in mean and variance, what it puts out
        there, on any batches. The model must still be a masked one: call it before ``speedup``.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    >>> recalibrate(model, [torch.randn(16, 2), torch.randn(16, 2)])
    """
    norms = _norms_of(model)
    quantizers = [m for m in model.modules() if isinstance(m, QuantizerModuleWrapper)]
    check_model(model, norms, quantizers)
    others = {} if original is None else _norms_of(original)
    if original is not None:
        check_original(original is model, _sizes(norms), _sizes(others))
    renewals = {name: _renewal(name, norm, others.get(name)) for name, norm in norms.items()}
    before = Snapshot(nn.ModuleList(norms.values()))
    models = [model] if original is None else [original, model]
    watched = [(norms[name], one.see) for name, one in renewals.items()]
    watched += [(others[name], one.see_original) for name, one in renewals.items() if others]
    try:
        with _watching(watched, models):
            for batch in batches:
                for each in models:
                    (forward or call)(each, batch)
        renew(renewals.values(), _in_all_processes)
    except BaseException:
        before.restore()
        raise


def _norms_of(model: nn.Module) -> dict[str, Any]:
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, _Norm)]
    return {name: norm for name, norm in named if norm.running_mean is not None}


def _sizes(norms: dict[str, Any]) -> dict[str, int]:
    return {name: len(norm.running_mean) for name, norm in norms.items()}


def _renewal(name: str, norm: Any, other: Any) -> Renewal:
    def write(mean: Tensor, variance: Tensor) -> None:
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)

    if other is None:
        return Renewal(name, write)
    return Renewal(
        name, write, (other.running_mean.double(), other.running_var.double(), other.eps)
    )


def _in_all_processes(seen: Moments) -> Moments:
    """Return the sums over all processes; each of them has seen every norm, or none has."""
    if not seen.count:
        return seen
    number = seen.total.new_tensor([seen.count])
    summed = sum_over_processes(torch.cat([seen.total, seen.squares, number]))
    total, squares = summed[:-1].chunk(2)
    return Moments(seen.name, total, squares, int(summed[-1]))


@contextmanager
def _watching(
    watched: Sequence[tuple[Any, Callable[[Any], None]]], models: Sequence[nn.Module]
) -> Iterator[None]:
    """Show norms' inputs, one row per channel, to functions; all models are in eval mode."""
    modes = {module: module.training for model in models for module in model.modules()}
    handles = [norm.register_forward_pre_hook(_hook(see)) for norm, see in watched]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, is_training in modes.items():
            module.training = is_training


def _hook(see: Callable[[Tensor], None]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    return lambda norm, args: see(args[0].detach().transpose(0, 1).flatten(1).double())
