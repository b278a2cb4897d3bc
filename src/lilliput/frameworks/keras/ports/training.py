"""Keras for the engine: following the training of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from lilliput.errors import ConfigError, UnsupportedModelError
from lilliput.frameworks.keras import instrument, penalty, running
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.functions import retrace
from lilliput.frameworks.keras.learning import AddedVariables
from lilliput.frameworks.keras.masks import restart
from lilliput.frameworks.keras.scopes import is_training
from lilliput.frameworks.keras.variables import raw, raw_weight
from lilliput.frameworks.keras.wrapper import ModuleWrapper
from lilliput.frameworks.ports.training import Penalty, Training


class KerasTraining(Training):
    """Follow the training of a model, and add parameters to its optimizer."""

    def on_forward(self, wrapper: ModuleWrapper, collector: Callable[..., Any]) -> list[Any]:
        """Register the collector on every layer that owns the weight."""
        owners = wrapper.layer_info.owners
        return [instrument.Collector(wrapper, collector).add_to(o.module) for o in owners]

    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call the task after each step of an optimizer; see :mod:`model`."""
        return models.OptimizerTask(optimizer, task)

    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Raise: in a graph, nothing can run between gradients and the step."""
        raise UnsupportedModelError(
            "this algorithm reads gradients before each step, which is supported on torch models only."
        )

    def callback(self, compressor: Any) -> Any:
        """Return a callback that follows ``fit`` for a compressor."""
        return models.CompressionCallback(compressor)

    def restart_optimizer(self, model: Any, optimizer: Any) -> None:
        """Reset the optimizer to the values of a new one, with its steps counted from 0."""
        restart(model, getattr(model, "optimizer", None) if optimizer is None else optimizer)

    def check_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> None:
        """Raise if this is not a Keras optimizer, or it is built for other variables."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ConfigError(
                f"optimizer: received {type(optimizer).__name__!r}, expected a keras.optimizers.Optimizer "
                "(model.optimizer), or none: then pass the compressor's callback() to fit."
            )
        held = {id(v) for v in getattr(optimizer, "_trainable_variables", ())}
        weights = [raw(w.module, name) for w in wrappers if (name := w.layer_info.weight_name)]
        if optimizer.built and weights and not any(id(v) in held for v in weights):
            raise ConfigError(
                "optimizer: it contains none of the weights to compress; was it created for another model?"
            )

    def add_to_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> list[Any]:
        """Add the wrappers' learned variables to the optimizer; see :mod:`learning`."""
        if not any(wrapper.learned() for wrapper in wrappers):
            return []
        added = AddedVariables(optimizer, wrappers[0].compressor.bound_model)
        for wrapper in wrappers:
            wrapper.put_slots()
        return [added]

    def gradient(self, wrapper: ModuleWrapper, optimizer: Any = None) -> Any:
        """Return the gradient that :meth:`run` has just computed."""
        found = running.gradients_in(wrapper.compressor.bound_model)
        return found.get(id(raw_weight(wrapper)))

    def pull_to_zero(
        self, wrappers: Sequence[ModuleWrapper], scale: float, optimizer: Any = None
    ) -> None:
        """Raise, as :meth:`before_step` does."""
        raise UnsupportedModelError("this algorithm changes gradients: on torch models only.")

    def penalize(self, wrappers: Sequence[ModuleWrapper], scale: float) -> None:
        """Add a regularizer to the raw weights; see :mod:`penalty`."""
        if penalty.set_penalty([raw_weight(wrapper) for wrapper in wrappers], scale):
            retrace(wrappers[0].compressor.bound_model)

    def add_penalty(
        self, wrapper: ModuleWrapper, names: Sequence[str], penalty: Penalty, optimizer: Any
    ) -> None:
        """Add a regularizer to a learned variable, which Keras includes in the loss."""
        (name,) = names

        def in_the_loss(value: Any) -> Any:
            found = ops.cast(penalty(value), keras.config.floatx())  # same type as the losses
            return found - ops.stop_gradient(
                found
            )  # its gradient counts; reported losses are the user's

        wrapper.learned()[name].regularizer = in_the_loss

    def is_training(self, model: Any) -> bool:
        """Whether the current call is in training mode."""
        return is_training()
