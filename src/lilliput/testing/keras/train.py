"""Train test models in each of the ways that Keras and its backends offer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras

from lilliput.backends.keras.variables import to_array
from lilliput.core.compressor import Compressor
from lilliput.testing.keras.models import make_batch

Array = Any


def sgd(weight_decay: float | None = None) -> Any:
    """Return an optimizer with momentum; steps are small enough for networks of one bit."""
    return keras.optimizers.SGD(0.05, 0.9, weight_decay=weight_decay, global_clipnorm=1.0)


def adamw() -> Any:
    """Return an optimizer with two moments of each weight."""
    return keras.optimizers.AdamW(0.01, weight_decay=0.05)


def compiled(model: Any, optimizer: Any = None, **options: Any) -> Any:
    """Compile a model to be trained step by step without graphs, and return its optimizer.

    Most checks do without graphs: to trace one takes as long as a hundred steps of models this small.
    """
    options = {"run_eagerly": True, "jit_compile": False} | options
    model.compile(sgd() if optimizer is None else optimizer, "mse", **options)
    return model.optimizer


def train(model: Any, steps: int, compressor: Compressor | None = None) -> None:
    """Train some steps; call ``step()`` by hand for a compressor that has no optimizer."""
    batch = make_batch(model)
    for _ in range(steps):
        model.train_on_batch(*batch)
        if compressor is not None and compressor.optimizer is None:
            compressor.step()


def fit(model: Any, epochs: int = 1, callbacks: Any = None) -> None:
    """Train by ``fit``, two steps an epoch."""
    options = {"batch_size": 2, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*make_batch(model), callbacks=callbacks, **options)


def loss_of(model: Any, inputs: Array, target: Array) -> Any:
    """Return the mean squared error of a model in training, as a tensor."""
    return squares(model(inputs, training=True), target)


def squares(result: Any, target: Array) -> Any:
    """Return the mean squared error, as a tensor."""
    return keras.ops.mean(
        keras.ops.square(keras.ops.subtract(keras.ops.cast(result, "float32"), target))
    )


def gradients(model: Any) -> dict[int, Array]:
    """Return the gradient of each weight that is trained, by the id of its variable; None if it has none."""
    variables = model.trainable_variables
    found = _GRADIENTS[keras.backend.backend()](model, variables)
    pairs = zip(variables, found, strict=True)
    return {
        id(v): None if g is None else to_array(keras.ops.convert_to_tensor(g)) for v, g in pairs
    }


def _tensorflow_gradients(model: Any, variables: list[Any]) -> list[Any]:
    tensorflow: Any = sys.modules["tensorflow"]
    with tensorflow.GradientTape() as tape:
        loss = loss_of(model, *make_batch(model))
    found: list[Any] = tape.gradient(loss, [v.value for v in variables])
    return found


def _jax_gradients(model: Any, variables: list[Any]) -> list[Any]:
    jax: Any = sys.modules["jax"]
    others = [v.value for v in model.non_trainable_variables]
    inputs, target = make_batch(model)

    def loss(trained: list[Any]) -> Any:
        result, _ = model.stateless_call(trained, others, inputs, training=True)
        return squares(result, target)

    found: list[Any] = jax.grad(loss)([v.value for v in variables])
    return found


def _torch_gradients(model: Any, variables: list[Any]) -> list[Any]:
    model.zero_grad()
    loss_of(model, *make_batch(model)).backward()
    found = [v.value.grad for v in variables]
    model.zero_grad()
    return found


_GRADIENTS: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "tensorflow": _tensorflow_gradients,
    "jax": _jax_gradients,
    "torch": _torch_gradients,
}
