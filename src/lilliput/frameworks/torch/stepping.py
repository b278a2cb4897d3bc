"""Hooks around an optimizer step that read its gradients before it uses them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


def before_step(optimizer: Any, task: Callable[[], None]) -> Any:
    """Call ``task()`` when the gradients of a step are complete; return a removable handle.

    With a closure, as in ``optimizer.step(closure)``, that is after each of its evaluations. A step
    that overflowed, which a fused optimizer therefore skips, has no usable gradients.
    """

    def hook(stepped: Any, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            _look(stepped, task)
            return None

        def evaluate() -> Any:
            loss = closure()
            _look(stepped, task)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluate}
        return (args[0], evaluate, *args[2:]), kwargs

    return optimizer.register_step_pre_hook(hook)


def gradient_scale(optimizer: Any) -> Tensor | None:
    """Return the factor by which the gradients are too large, or None.

    A GradScaler leaves the division to a fused optimizer, which does it in its kernel.
    """
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    return scale


@torch.no_grad()
def _look(optimizer: Any, task: Callable[[], None]) -> None:
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None or not bool(found_inf):
        task()


class ClosureOptimizer:
    """An optimizer whose ``step`` computes the gradients first, as in Lightning.

    A hook before the step would see the gradients of the previous step. Such hooks are stored here, and
    run when gradients are reported to be complete.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Store a hook."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def show_gradients(self) -> None:
        """Run all hooks: gradients are complete."""
        for hook in list(self._hooks.values()):
            hook(self.optimizer, (), {})
