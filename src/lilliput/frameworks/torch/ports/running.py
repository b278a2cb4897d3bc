"""Torch for the engine: running a model on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.ports.running import Running
from lilliput.frameworks.torch import batches, effects, recompute, statistics


class TorchRunning(Running):
    """Run a model on data, and report how it is running."""

    is_recomputing = staticmethod(recompute.is_recomputing)
    when_recomputing = staticmethod(recompute.when_recomputing)
    may_be_recomputed = staticmethod(recompute.may_be_recomputed)
    run = staticmethod(statistics.run)
    on_gradient = staticmethod(statistics.on_gradient)
    probe = staticmethod(statistics.probe)
    sampled_loss = staticmethod(effects.sampled_loss)
    feeder = staticmethod(batches.feeder)

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
