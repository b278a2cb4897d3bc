"""Data for criteria while a model runs: activations and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from lilliput.errors import ConfigError, UnsupportedModelError
from lilliput.frameworks.torch.batches import call
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.modes import Modes, evaluating
from lilliput.frameworks.torch.weights import is_parametrized, is_sharded, raw, whole, zero_


def gradient(wrapper: Any, factor: Tensor | None = None) -> Tensor | None:
    """Return the full gradient of a raw weight, divided by the loss scale."""
    parameter = _trained(wrapper)
    if parameter is None or parameter.grad is None:
        return None
    found = whole(parameter.grad)
    found = found.to_dense() if found.is_sparse else found
    return found if factor is None else found / factor.to(found.device)


@torch.no_grad()
def pull_to_zero(wrappers: Sequence[Any], scale: float, factor: Tensor | None = None) -> None:
    """Add ``scale * sign(w)``, times the loss scale, to the gradients of the raw weights."""
    for wrapper in wrappers:
        parameter = _trained(wrapper)
        if parameter is not None and parameter.grad is not None:
            sign = parameter.sign()
            sign = sign if factor is None else sign * factor.to(sign.device)
            parameter.grad.add_(sign, alpha=scale)


def add_penalty(
    wrapper: Any,
    names: Sequence[str],
    penalty: Callable[..., Tensor],
    factor: Tensor | None = None,
) -> None:
    """Add the gradients of a penalty, times the loss scale, to those of its arguments.

    The arguments are a raw weight (``"weight"``) and parameters of its wrapper. An argument without a
    gradient is not part of the loss, and gets none.
    """
    held = [_trained(wrapper) if x == "weight" else wrapper._parameters.get(x) for x in names]
    if any(p is None for p in held) or all(p.grad is None for p in held):
        return
    if "weight" in names and is_sharded(held[names.index("weight")]):
        raise UnsupportedModelError(
            f"layer {wrapper.name!r}: its weight is sharded across processes, but what the algorithm adds to "
            "its gradient is not; use DistributedDataParallel."
        )
    with torch.enable_grad():
        values = [parameter.detach().requires_grad_() for parameter in held]
        terms = torch.autograd.grad(penalty(*values), values)
    with torch.no_grad():
        for parameter, term in zip(held, terms, strict=True):
            if parameter.grad is not None:
                _add(parameter, term if factor is None else term * factor.to(term.device))


def _add(parameter: nn.Parameter, term: Tensor) -> None:
    """Add to a gradient; that of an Embedding(sparse=True) becomes dense."""
    gradient: Any = parameter.grad
    if gradient.is_sparse:
        gradient = parameter.grad = gradient.to_dense()
    gradient.add_(term.to(gradient.dtype))


@torch.no_grad()
def mask_gradients(pairs: Iterable[tuple[Any, Tensor]]) -> None:
    """Set the gradients of pruned weights to zero, in place."""
    for parameter, mask in pairs:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad * mask
        elif parameter.grad is not None:
            zero_(parameter.grad, mask)


def run(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None,
    task: Callable[[], None] | None = None,
) -> None:
    """Run batches through a model without changing it.

    In eval mode, so that norm statistics do not change. With a task, ``forward`` returns a loss; the task is
    called when its gradients are computed, and the previous gradients are restored.
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        with evaluating(model), torch.set_grad_enabled(task is not None), calling_modules():
            for batch in batches:
                result = (forward or call)(model, batch)
                if task is not None:
                    for parameter, _ in gradients:
                        parameter.grad = None
                    _check_loss(result)
                    result.backward()
                    task()
    finally:
        for parameter, before in gradients:
            parameter.grad = before


def _check_loss(result: Any) -> None:
    """Raise unless a loss can be differentiated."""
    if not isinstance(result, Tensor):
        received = f"{type(result).__name__} {result!r:.40}"
    elif result.numel() != 1:
        received = f"a tensor of shape {tuple(result.shape)}"
    elif not result.requires_grad:
        received = "a tensor without a gradient: detached, or computed under no_grad()"
    else:
        return
    raise ConfigError(
        f"loss(model, batch) returned {received}; expected a tensor with one number that depends on the "
        "weights, such as cross_entropy(model(x), y)."
    )


def on_gradient(tensor: Tensor, task: Callable[[Tensor], None]) -> None:
    """Call a task with the gradient of a tensor, when it is computed."""
    if torch.is_grad_enabled():
        if not tensor.requires_grad:
            tensor.requires_grad_()  # of a model with frozen parameters
        tensor.register_hook(lambda gradient: task(gradient.detach()))  # type: ignore[no-untyped-call]


def probe(outputs: Any) -> Tensor:
    """Return a random combination of all outputs, each tensor divided by its standard deviation.

    The mean square of its gradient measures how much all outputs together depend on something.
    """
    found = [x for x in tree_flatten(outputs)[0] if isinstance(x, Tensor) and x.requires_grad]
    if not found:
        raise UnsupportedModelError(
            f"the model returned {type(outputs).__name__}, which contains no tensor to differentiate; pass "
            "loss=lambda model, batch: ... to calibrate()."
        )
    total = torch.zeros((), device=found[0].device)
    for x in found:
        spread = x.detach().float().std().clamp(min=1e-12) if x.numel() > 1 else 1.0
        signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(x.numel()))
        total = total + (x.float() * (2.0 * signs - 1).to(x.device) / spread).sum()
    return total


class Snapshot:
    """All parameters, buffers and modes of a model, to restore later; an optimizer is not affected."""

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._modes = Modes(model)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the values in place, after the modes: these may write to weights."""
        self.restore_modes()
        for tensor, value in self._values:
            tensor.copy_(value)

    def restore_modes(self) -> None:
        """Restore only training and evaluation mode, module by module."""
        self._modes.restore()


def _trained(wrapper: Any) -> Any:
    name = wrapper.layer_info.weight_name
    return None if is_parametrized(wrapper.module, name) else raw(wrapper.module, name)
