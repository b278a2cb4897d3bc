"""Inputs and outputs of each layer, with the gradients of both through that layer alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.features import are_shares

_SMALLEST = 1e-12  # lower bound of a probability before its logarithm

# task(input, its gradient through this layer, output, its gradient); None if there is none.
Task = Callable[[Tensor, Tensor | None, Tensor, Tensor], None]


def watch_effects(module: nn.Module, task: Task, is_shared: bool = False) -> list[Any]:
    """Call a task in each backward for each call of a module; return removable handles.

    The input is passed as a separate tensor, so that its gradient is that of this module alone,
    whatever else reads the tensor. The module's parameters require no gradient while it is observed, which
    saves a third of the backward; parameters shared with another module are not changed.
    """
    handles: list[Any] = [
        module.register_forward_pre_hook(_own_input),
        module.register_forward_hook(_Watch(task)),
    ]
    if not is_shared:
        frozen = _Frozen()
        handles += [module.register_forward_pre_hook(frozen), frozen]
    return handles


class _Frozen:
    """Parameters without gradients, from the first call of a module with floats, until it is removed."""

    def __init__(self) -> None:
        self.held: list[nn.Parameter] = []

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        first = args[0] if args else None
        if not isinstance(first, Tensor) or not first.requires_grad:
            return  # tokens: backward ends at the weight
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                self.held.append(parameter)

    def remove(self) -> None:
        while self.held:
            self.held.pop().requires_grad_(True)


def _own_input(module: nn.Module, args: tuple[Any, ...]) -> Any:
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return None
    is_new = not first.requires_grad
    return (first.detach().clone().requires_grad_() if is_new else first * 1, *args[1:])


class _Watch:
    """The forward hook of one module."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (args and isinstance(args[0], Tensor) and isinstance(output, Tensor)):
            return
        if not output.requires_grad:
            return
        # Hooks must not reference tensors with a graph: a hook that referenced its own tensor would
        # keep it and all activations behind it alive, because Python cannot see through autograd.
        read, returned = args[0].detach(), output.detach().clone()  # before an in-place operation
        has_gradient = args[0].requires_grad
        held: list[Tensor] = []

        def on_output(gradient: Tensor) -> None:
            held.append(gradient.detach())
            if not has_gradient:  # integers, such as tokens
                self.task(read, None, returned, held.pop())

        def on_input(gradient: Tensor) -> None:
            if held:
                self.task(read, gradient.detach(), returned, held.pop())

        output.register_hook(on_output)  # type: ignore[no-untyped-call]
        if has_gradient:
            args[0].register_hook(on_input)  # type: ignore[no-untyped-call]


@torch.no_grad()
def response(module: nn.Module, weight_name: str, weight: Tensor, inputs: Tensor) -> Tensor:
    """Return the output of a module with another weight and without bias."""
    others = {name: torch.zeros_like(p) for name, p in module.named_parameters(recurse=False)}
    changed = {**others, weight_name: weight}
    found: Tensor = torch.func.functional_call(module, changed, (inputs,))
    return found


def sampled_loss(outputs: Any, seed: int) -> Tensor | None:
    """Return minus the log-likelihood of classes sampled from the model's own predictions.

    The mean square of its derivative along a change of the model is, to second order, twice the
    KL divergence caused by the change. Probabilities are used directly, other outputs as
    logits. None if the outputs are not one row of classes per example.
    """
    found = getattr(outputs, "logits", outputs)
    if not isinstance(found, Tensor) or found.dim() != 2 or found.shape[1] < 2:
        return None
    values = found.float()
    is_done = are_shares(values.detach(), 1)
    logs = values.clamp(min=_SMALLEST).log() if is_done else values.log_softmax(1)
    # With NumPy, so that Keras models sample the same classes.
    draws = np.random.default_rng(seed).random((len(values), 1)).astype(np.float32)
    reached = logs.detach().exp().cumsum(1)
    drawn = (reached < torch.from_numpy(draws).to(reached.device)).sum(1, keepdim=True)
    return -logs.gather(1, drawn.clamp(max=values.shape[1] - 1)).sum()
