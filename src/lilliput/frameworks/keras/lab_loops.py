"""Gradients, and custom training loops, in the style of each backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from lilliput.frameworks.keras.lab_models import make_batch
from lilliput.frameworks.keras.variables import to_array

if TYPE_CHECKING:
    from lilliput.core.compressor import Compressor

Array = Any
Loop = Callable[[Any, Any, int], None]  # the last two: a compressor, and the number of steps


def loss_of(model: Any, inputs: Array, target: Array) -> Any:
    """Return the mean squared error of a model in training, as a tensor."""
    return squares(model(inputs, training=True), target)


def squares(result: Any, target: Array) -> Any:
    """Return the mean squared error, as a tensor."""
    return keras.ops.mean(
        keras.ops.square(keras.ops.subtract(keras.ops.cast(result, "float32"), target))
    )


def gradients(model: Any, distiller: Any = None) -> dict[int, Array]:
    """Return the gradient of each trained weight, by the id of its variable; None if it has none.

    The loss is that of training, or that of a distiller.
    """

    def loss() -> Any:
        found = loss_of(model, *make_batch(model))
        return found if distiller is None else distiller.loss()

    variables = model.trainable_variables
    pairs = zip(variables, _GRADIENTS[keras.backend.backend()](model, loss, variables), strict=True)
    return {
        id(v): None if g is None else to_array(keras.ops.convert_to_tensor(g)) for v, g in pairs
    }


def compare(model: Any, distiller: Any) -> tuple[Array, Array]:
    """Return a model's training output, and its distance to the teacher by a distiller."""
    result = model(make_batch(model)[0], training=True)
    return to_array(result), to_array(distiller.loss())


def _tensorflow_gradients(model: Any, loss: Callable[[], Any], variables: list[Any]) -> list[Any]:
    tensorflow: Any = sys.modules["tensorflow"]
    with tensorflow.GradientTape() as tape:
        total = loss()
    found: list[Any] = tape.gradient(total, [v.value for v in variables])
    return found


def _jax_gradients(model: Any, loss: Callable[[], Any], variables: list[Any]) -> list[Any]:
    def compute(trained: list[Any]) -> Any:
        with keras.StatelessScope(list(zip(variables, trained, strict=True))):
            return loss()

    found: list[Any] = sys.modules["jax"].grad(compute)([v.value for v in variables])
    return found


def _torch_gradients(model: Any, loss: Callable[[], Any], variables: list[Any]) -> list[Any]:
    model.zero_grad()
    loss().backward()
    found = [v.value.grad for v in variables]
    model.zero_grad()
    return found


_GRADIENTS: dict[str, Callable[..., list[Any]]] = {
    "tensorflow": _tensorflow_gradients,
    "jax": _jax_gradients,
    "torch": _torch_gradients,
}


def own_loops() -> dict[str, Loop]:
    """Return the custom training loops of this backend, by description."""
    return _LOOPS[keras.backend.backend()]


def _tape_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """A loop with a gradient tape, without a graph; the optimizer is followed automatically."""
    tensorflow: Any = sys.modules["tensorflow"]
    optimizer = compressor.optimizer or keras.optimizers.SGD(0.05, 0.9)
    for _ in range(steps):
        with tensorflow.GradientTape() as tape:
            loss = loss_of(model, *make_batch(model))
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(found, model.trainable_variables)


def _graph_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """The same inside a ``tf.function``, which only the user can follow."""
    tensorflow: Any = sys.modules["tensorflow"]
    optimizer = compressor.optimizer or keras.optimizers.SGD(0.05, 0.9)
    optimizer.build(model.trainable_variables)
    inputs, target = make_batch(model)

    @tensorflow.function  # type: ignore[untyped-decorator]
    def step(inputs: Any, target: Any) -> None:
        with tensorflow.GradientTape() as tape:
            loss = loss_of(model, inputs, target)
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(found, model.trainable_variables)

    for _ in range(steps):
        step(tensorflow.constant(inputs), tensorflow.constant(target))
        compressor.step()


def _stateless_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """The loop of the Keras guide for JAX: stateless functions, with variables set at the end."""
    jax: Any = sys.modules["jax"]
    optimizer = compressor.optimizer or keras.optimizers.SGD(0.05, 0.9)
    optimizer.build(model.trainable_variables)
    inputs, target = make_batch(model)

    def loss(trained: Any, others: Any) -> Any:
        result, others = model.stateless_call(trained, others, inputs, training=True)
        return squares(result, target), others

    @jax.jit  # type: ignore[untyped-decorator]
    def step(trained: Any, others: Any, slots: Any) -> Any:
        (_, others), found = jax.value_and_grad(loss, has_aux=True)(trained, others)
        trained, slots = optimizer.stateless_apply(slots, found, trained)
        return trained, others, slots

    held = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    for _ in range(steps):
        state = step(*([v.value for v in variables] for variables in held))
        for variables, values in zip(held, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        compressor.step()


def _torch_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """The usual torch loop, with a torch optimizer."""
    torch: Any = sys.modules["torch"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, *make_batch(model)).backward()
        optimizer.step()
        compressor.step()


_LOOPS: dict[str, dict[str, Loop]] = {
    "tensorflow": {"a GradientTape": _tape_loop, "a tf.function": _graph_loop},
    "jax": {"stateless_call": _stateless_loop},
    "torch": {"a loop of torch": _torch_loop},
}
