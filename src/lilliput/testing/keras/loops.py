"""Loops of training that users write themselves, in the way of each backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras

from lilliput.core.compressor import Compressor
from lilliput.testing.keras.models import make_batch
from lilliput.testing.keras.train import loss_of, sgd, squares

Loop = Callable[[Any, Compressor, int], None]


def own_loops() -> dict[str, Loop]:
    """Return the loops that users of this backend write, by what they are."""
    return _LOOPS[keras.backend.backend()]


def _tape_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """A loop with a gradient tape, without a graph; the optimizer is followed by itself."""
    tensorflow: Any = sys.modules["tensorflow"]
    optimizer = compressor.optimizer or sgd()
    for _ in range(steps):
        with tensorflow.GradientTape() as tape:
            loss = loss_of(model, *make_batch(model))
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(found, model.trainable_variables)


def _graph_loop(model: Any, compressor: Compressor, steps: int) -> None:
    """The same inside a ``tf.function``, where nobody can follow but the user."""
    tensorflow: Any = sys.modules["tensorflow"]
    optimizer = compressor.optimizer or sgd()
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
    """The loop of the Keras guide for JAX: state goes in and comes out, variables are set in the end."""
    jax: Any = sys.modules["jax"]
    optimizer = compressor.optimizer or sgd()
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
    """The usual loop of torch, with an optimizer of torch."""
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
