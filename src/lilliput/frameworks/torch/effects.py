"""Inputs and outputs of each layer, with the gradients of both through that layer alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.features import are_shares

_SMALLEST = 1e-12  # probability whose logarithm is taken
_MANY = 8  # positions of an example, from which on products are cheaper than responses

# task(input, gradient of it through this layer, output, gradient of it); None where there is none.
Task = Callable[[Tensor, Tensor | None, Tensor | None, Tensor], None]


def watch_effects(
    module: nn.Module, task: Task, is_shared: bool = False, weight_only: bool = False
) -> list[Any]:
    """Call a task in each backward for each call of a module; return removable handles.

    The module gets its input as a separate tensor, so that the input's gradient is the one through this
    module alone, even if other modules read the same tensor. While it is watched, its parameters do not
    require gradients, which saves a third of the backward pass; parameters shared with another module are
    not changed. For a task that only needs the weight, the input's gradient and the output are None, which
    avoids a copy of each.
    """
    handles: list[Any] = [
        module.register_forward_pre_hook(_first_input if weight_only else _own_input),
        module.register_forward_hook(_WatchWeight(task) if weight_only else _Watch(task)),
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


def _first_input(module: nn.Module, args: tuple[Any, ...]) -> Any:
    """Make the way back begin here, if no parameter before needs a gradient."""
    first = args[0] if args else None
    if not torch.is_grad_enabled() or not isinstance(first, Tensor):
        return None
    if not first.is_floating_point() or first.requires_grad:
        return None
    return (first.detach().clone().requires_grad_(), *args[1:])


class _WatchWeight:
    """The forward hook of one module whose input and output's gradient are looked at."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (args and isinstance(args[0], Tensor) and isinstance(output, Tensor)):
            return
        if output.requires_grad:
            read = args[0].detach().clone()  # before a later module works in place
            output.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self.task(read, None, None, gradient.detach())
            )


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
def weight_effects(
    module: nn.Module,
    weight_name: str,
    changes: Sequence[Tensor],
    inputs: Tensor,
    gradient: Tensor,
    keeps_means: bool = False,
) -> list[Tensor]:
    """Return, for each change of a weight, by how much it moves the loss of each example.

    If the weight is applied to each position separately, one product of inputs and gradients serves all
    changes; otherwise the module runs once per change. The mean of each channel may be kept, as a corrected
    bias keeps it.
    """
    found = _by_position(module, inputs, gradient)
    if found is None:
        moved = (response(module, weight_name, change, inputs) for change in changes)
        axis = -1 if isinstance(module, nn.Linear) else 1
        kept = (_without_mean(x, axis) if keeps_means else x for x in moved)
        return [_dots(gradient, x) for x in kept]
    read, returned = (x.float() for x in found)
    read = _without_mean(read, -1) if keeps_means else read
    rows = (returned.mT @ read).flatten(1)
    return [rows @ change.float().flatten() for change in changes]


def _without_mean(values: Tensor, axis: int) -> Tensor:
    """Return values less the mean of each channel over all others."""
    others = [i for i in range(values.dim()) if i != axis % values.dim()]
    return values - values.mean(others, keepdim=True)


def _dots(one: Tensor, two: Tensor) -> Tensor:
    """Return the dot product of each example."""
    rows = (x.float().reshape(len(x), 1, -1) for x in (one, two))
    return (next(rows) @ next(rows).mT).reshape(-1)


def _by_position(
    module: nn.Module, inputs: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return inputs and gradients as (example, position, channel), None if positions are mixed or few."""
    if isinstance(module, nn.Linear) and inputs.dim() > 1:
        pair = (x.reshape(len(x), -1, x.shape[-1]) for x in (inputs, gradient))
    elif (
        isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        and module.groups == 1
        and set(module.kernel_size) == set(module.stride) == {1}
        and inputs.shape[2:] == gradient.shape[2:]  # no padding
    ):
        pair = (x.flatten(2).mT for x in (inputs, gradient))
    else:
        return None
    read, returned = pair
    return (read, returned) if read.shape[1] >= _MANY else None


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
