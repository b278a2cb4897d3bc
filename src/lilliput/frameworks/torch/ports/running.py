"""Torch for the engine: running a model on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.ports.running import Forward, Running, Task
from lilliput.frameworks.torch import batches, effects, recompute, statistics


class TorchRunning(Running):
    """Run a model on data, and report how it is running."""

    def is_recomputing(self) -> bool:
        """Whether autograd repeats this forward pass; see :mod:`recompute`."""
        return recompute.is_recomputing()

    def when_recomputing(self, like: Tensor) -> Tensor | None:
        """Return a flag for the same in compiled code."""
        return recompute.when_recomputing(like)

    def may_be_recomputed(self) -> bool:
        """Whether autograd may repeat this forward pass."""
        return recompute.may_be_recomputed()

    def run(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        forward: Forward | None,
        task: Task | None = None,
    ) -> None:
        """Run batches in eval mode, with gradients if a task reads them."""
        statistics.run(model, batches, forward, task)

    def on_gradient(self, tensor: Tensor, task: Callable[[Tensor], None]) -> None:
        """Register a tensor hook."""
        statistics.on_gradient(tensor, task)

    def probe(self, outputs: Any) -> Tensor:
        """Return a random combination of outputs to differentiate."""
        return statistics.probe(outputs)

    def sampled_loss(self, outputs: Any, seed: int) -> Tensor | None:
        """Return a loss whose derivatives measure KL divergences; see :mod:`effects`."""
        return effects.sampled_loss(outputs, seed)

    def watch_effects(
        self, layer: LayerInfo, task: Callable[..., None], weight_only: bool = False
    ) -> list[Any]:
        """Watch every module that owns the weight."""
        is_shared = len(layer.owners) > 1
        return [
            x
            for owner in layer.owners
            for x in effects.watch_effects(owner.module, task, is_shared, weight_only)
        ]

    def weight_effects(
        self,
        layer: LayerInfo,
        changes: Sequence[Tensor],
        inputs: Tensor,
        gradient: Tensor,
        keeps_means: bool = False,
    ) -> list[Tensor]:
        """Run a module that owns the weight, which is linear, with the changes alone.

        If an embedding and a linear layer share it, the one that accepts such inputs.
        """
        takes = (x for x in layer.owners if _reads_tokens(x.module) != inputs.is_floating_point())
        owner = next(takes, layer.owners[0])
        name = owner.weight_name or ""
        return effects.weight_effects(owner.module, name, changes, inputs, gradient, keeps_means)

    def feeder(self, example_inputs: Any) -> Forward:
        """Return a function that calls a model with a batch; see :mod:`batches`."""
        return batches.feeder(example_inputs)

    def remember(self, model: nn.Module) -> statistics.Snapshot:
        """Return copies of all parameters and buffers, and the modes of all modules."""
        return statistics.Snapshot(model)

    def from_array(self, array: Any) -> Tensor:
        """Return a NumPy array as a tensor that shares its memory."""
        return torch.from_numpy(array)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a torch tensor."""
        return isinstance(value, Tensor)

    def no_grad(self) -> AbstractContextManager[Any]:
        """A context in which no gradient is recorded."""
        return torch.no_grad()


def _reads_tokens(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))
