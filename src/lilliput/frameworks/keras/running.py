"""Run a Keras model on batches of data loaders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.variables import to_array

_GRADIENTS = "_lilliput_gradients"


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


def run_with_gradients(
    model: Any,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Any],
    task: Callable[[], None],
) -> None:
    """Call a task for each batch once the gradients of its loss are computed; the model is not changed."""
    before = Snapshot(model)
    variables = model.trainable_variables
    try:
        for batch in batches:
            pairs = zip(variables, _gradients(model, loss, batch, variables), strict=True)
            vars(model)[_GRADIENTS] = {id(v): g for v, g in pairs if g is not None}
            task()
    finally:
        vars(model).pop(_GRADIENTS, None)
        before.restore()


def gradients_in(model: Any) -> dict[int, Any]:
    """Return the gradients of the current batch, by the id of the variable."""
    found: dict[int, Any] = vars(model).get(_GRADIENTS, {})
    return found


def _gradients(model: Any, loss: Callable[..., Any], batch: Any, variables: list[Any]) -> Any:
    """Return the gradient of a loss with respect to each variable, or None."""

    def compute(values: Sequence[Any]) -> Any:
        if keras.backend.backend() != "jax":  # the variables themselves
            return loss(model, batch)
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return loss(model, batch)

    return derive(compute, [variable.value for variable in variables])


def derive(compute: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> Sequence[Any]:
    """Return the gradient of a number with respect to each tensor.

    None for a tensor that it does not depend on; on JAX, zeros.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        for value in values:
            value.requires_grad_()
        found: Sequence[Any] = sys.modules["torch"].autograd.grad(
            compute(values), values, allow_unused=True
        )
        return found
    if backend == "tensorflow":
        with sys.modules["tensorflow"].GradientTape() as tape:
            tape.watch(values)
            total = compute(values)
        found = tape.gradient(total, values)
        return [None if x is None else keras.ops.convert_to_tensor(x) for x in found]
    found = sys.modules["jax"].grad(compute)(list(values))
    return found


def call(model: Any, batch: Any) -> Any:
    """Call a model with a batch: a tensor, ``(inputs, targets)`` or its inputs."""
    return model(inputs_of(batch), training=False)


def inputs_of(batch: Any) -> Any:
    """Return the inputs of a batch as ``fit`` does: the first part of a tuple."""
    return batch[0] if isinstance(batch, tuple) and not isinstance(batch, Mapping) else batch


class Snapshot:
    """The values of all variables of a model, to restore later."""

    def __init__(self, model: Any) -> None:
        sync(model)
        self._model = model
        self._values = [(variable, to_array(variable)) for variable in model.variables]

    def restore(self) -> None:
        """Restore the values."""
        sync(self._model)
        for variable, value in self._values:
            variable.assign(value)

    def restore_modes(self) -> None:
        """Do nothing: each call specifies whether it is training."""


def no_grad() -> AbstractContextManager[Any]:
    """A context in which no gradient is recorded; TensorFlow and JAX record none by default."""
    if keras.backend.backend() != "torch":
        return nullcontext()
    context: AbstractContextManager[Any] = sys.modules["torch"].no_grad()
    return context
