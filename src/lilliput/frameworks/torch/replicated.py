"""Learned numbers under FSDP2: whole in every process, but DTensors like all other parameters there.

Functions over all parameters (``clip_grad_norm_``, foreach optimizers) do not accept a mixture of DTensors
and plain ones. An algorithm still sees plain tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lilliput.frameworks.torch.process_group import average
from lilliput.frameworks.torch.weights import is_sharded, local


class Replicated:
    """Part of a wrapper's class: its parameters read as plain tensors, which share their memory."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)  # type: ignore[misc]
        return value.to_local() if is_sharded(value) else value

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers and parameters of this wrapper, as plain tensors."""
        held: dict[str, Tensor] = super().tensors()  # type: ignore[misc]
        return {name: local(tensor) for name, tensor in held.items()}


@functools.cache
def replicated_class(cls: Any) -> Any:
    """Return a wrapper's class with :class:`Replicated` in front."""
    return cls if issubclass(cls, Replicated) else type(cls.__name__, (Replicated, cls), {})


def replicate(value: Tensor, like: Any) -> Tensor:
    """Return a tensor as a DTensor that is whole in every process of another one's mesh."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)


class GradientMean:
    """Hooks that average gradients over processes at the end of each backward, in one exchange.

    FSDP2 does this only for the weights that it has sharded.

    Parameters
    ----------
    parameters : sequence of Parameter
        The parameters that are whole in every process.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._task = -1  # the backward in which the exchange is pending
        self._hooks = [p.register_post_accumulate_grad_hook(self._queue) for p in parameters]

    def remove(self) -> None:
        """Stop averaging."""
        for hook in self._hooks:
            hook.remove()

    def _queue(self, _: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is None:  # another process may have one
                parameter.grad = torch.zeros_like(parameter)
        average([p.grad for p in self._parameters])
