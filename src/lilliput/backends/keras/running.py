"""Run a Keras model on batches as data loaders give them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from lilliput.backends.keras.scopes import sync
from lilliput.backends.keras.variables import to_array


def run(
    model: Any, batches: Iterable[Any], forward: Callable[[Any, Any], Any] | None = None
) -> None:
    """Run batches in inference mode, without gradients."""
    with no_grad():
        for batch in batches:
            if forward is not None:
                forward(model, batch)
            else:
                call(model, batch)


def call(model: Any, batch: Any) -> Any:
    """Call a model with a batch: a tensor, ``(inputs, targets)`` or what it takes as inputs."""
    return model(inputs_of(batch), training=False)


def inputs_of(batch: Any) -> Any:
    """Return the inputs of a batch, in the way of ``fit``: the first part of a tuple."""
    return batch[0] if isinstance(batch, tuple) and not isinstance(batch, Mapping) else batch


class Snapshot:
    """The values of all variables of a model, to go back to."""

    def __init__(self, model: Any) -> None:
        sync(model)
        self._model = model
        self._values = [(variable, to_array(variable)) for variable in model.variables]

    def restore(self) -> None:
        """Put the values back."""
        sync(self._model)
        for variable, value in self._values:
            variable.assign(value)

    def restore_modes(self) -> None:
        """Do nothing: a call says itself whether it is one of training."""


def no_grad() -> AbstractContextManager[Any]:
    """A context in which no gradient is recorded; TensorFlow and JAX record none unless asked."""
    if keras.backend.backend() != "torch":
        return nullcontext()
    context: AbstractContextManager[Any] = sys.modules["torch"].no_grad()
    return context
