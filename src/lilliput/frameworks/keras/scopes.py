"""The state of the current Keras call. All private parts of Keras that we need are here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
from keras.src import backend as _backend
from keras.src.backend.common import global_state as _global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope as _in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope as is_symbolic

__all__ = [
    "full_precision",
    "has_value",
    "is_calling",
    "is_symbolic",
    "is_tracing",
    "is_training",
    "mean_over_replicas",
    "outermost",
    "publish",
    "replicas",
    "strategy_of",
    "sync",
]

_published = threading.local()


def is_tracing() -> bool:
    """Whether a graph is being traced."""
    if _in_stateless_scope():
        return True
    tensorflow = sys.modules.get("tensorflow")
    is_tensorflow = keras.backend.backend() == "tensorflow" and tensorflow is not None
    return is_tensorflow and bool(tensorflow.inside_function())  # type: ignore[union-attr]


def has_value(tensor: Any) -> bool:
    """Whether a tensor has a value: not in a compiled function, nor in a loop of JAX."""
    return not is_tracing() and not type(tensor).__name__.endswith("Tracer")


def is_calling() -> bool:
    """Whether a layer or a model is being called."""
    return _global_state.get_global_attribute("current_call_ctx") is not None


def outermost() -> Any:
    """Return the outermost layer or model that is being called, or None."""
    context = _global_state.get_global_attribute("current_call_ctx")
    return None if context is None else context.entry_layer


def is_training() -> bool:
    """Whether the current call is in training mode."""
    stack = getattr(_published, "stack", None)
    if stack:
        return bool(stack[-1])
    context = _global_state.get_global_attribute("current_call_ctx")
    return context is not None and bool(context.get_value("training"))


@contextmanager
def publish(training: Any) -> Iterator[None]:
    """Pass the training mode to the layers inside a model's call.

    Keras itself passes it only to layers with that argument, and on JAX to none that a model calls directly.
    """
    if training is None:
        yield
        return
    stack = _published.__dict__.setdefault("stack", [])
    stack.append(training)
    try:
        yield
    finally:
        stack.pop()


@contextmanager
def full_precision() -> Iterator[Any]:
    """Read variables without casting; yields the dtype of mixed precision, or None."""
    scope = _backend.get_autocast_scope()
    if scope is None or scope.dtype is None:
        yield None
        return
    with _backend.AutocastScope(None):
        yield scope.dtype


def sync(model: Any) -> None:
    """Update variables, whose values are stored elsewhere while ``fit`` runs on JAX."""
    if hasattr(model, "jax_state_sync") and not is_tracing():
        model.jax_state_sync()


# -- several devices: tf.distribute ------------------------------------------------------------------


def strategy_of(model: Any) -> AbstractContextManager[Any]:
    """Return the scope for creating variables of a model, in which each device gets its own copy."""
    strategy = getattr(model, "_distribute_strategy", None)
    scope: AbstractContextManager[Any] = nullcontext() if strategy is None else strategy.scope()
    return scope


def replicas() -> int:
    """Return the number of devices that run the current call at the same time."""
    context = _replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def mean_over_replicas(tensor: Any) -> Any:
    """Return the mean of a tensor over all devices, so that they stay equal."""
    context = _replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_reduce(sys.modules["tensorflow"].distribute.ReduceOp.MEAN, tensor)


def _replica_context() -> Any:
    tensorflow = sys.modules.get("tensorflow")
    if keras.backend.backend() != "tensorflow" or tensorflow is None:
        return None
    return tensorflow.distribute.get_replica_context()
