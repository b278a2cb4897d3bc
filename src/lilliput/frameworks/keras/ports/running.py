"""Keras for the engine: running a model on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.keras import effects, running
from lilliput.frameworks.keras.scopes import is_tracing
from lilliput.frameworks.ports.running import Forward, Running, Task

Tensor = Any


class KerasRunning(Running):
    """Run a model on data, and report how it is running."""

    is_tracing = staticmethod(is_tracing)
    probe = staticmethod(effects.probe)
    sampled_loss = staticmethod(effects.sampled_loss)
    no_grad = staticmethod(running.no_grad)

    def is_activated(self, layer: LayerInfo) -> bool:
        """Whether the layer has an activation other than the linear one."""
        own = getattr(layer.module, "activation", None)
        return own is not None and own is not keras.activations.linear

    def feeder(self, example_inputs: Any) -> Forward:
        """Return a function that calls a model with the inputs of a batch, as ``fit`` does."""
        return running.call

    def run(
        self, model: Any, batches: Iterable[Any], forward: Forward | None, task: Task | None = None
    ) -> None:
        """Run batches in inference mode, with gradients if a task reads them."""
        taps = [] if task is None else effects.taps_in(model)
        if task is None:
            running.run(model, batches, forward)
        elif taps:
            effects.run(model, batches, forward or running.call, taps, task)
        else:
            running.run_with_gradients(model, batches, forward or running.call, task)

    def watch_effects(
        self, layer: LayerInfo, task: Callable[..., None], weight_only: bool = False
    ) -> list[Any]:
        """Watch every layer that owns the weight."""
        return list(effects.watch_effects(layer, task))

    def weight_effects(
        self,
        layer: LayerInfo,
        changes: Sequence[Tensor],
        inputs: Tensor,
        gradient: Tensor,
        keeps_means: bool = False,
    ) -> list[Tensor]:
        """Run the first layer that owns the weight with and without each change; no bias is corrected."""
        return effects.weight_effects(layer, changes, inputs, gradient)

    def remember(self, model: Any) -> running.Snapshot:
        """Return copies of all variables; Keras has no modes."""
        return running.Snapshot(model)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor, a variable or a NumPy array."""
        return isinstance(value, (keras.Variable, np.ndarray)) or bool(ops.is_tensor(value))
