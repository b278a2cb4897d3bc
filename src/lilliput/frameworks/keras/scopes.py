"""What Keras knows of the call that is going on. All of its private parts that we need are here."""

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
    """Whether this code runs to build a graph, and not to compute."""
    if _in_stateless_scope():
        return True
    tensorflow = sys.modules.get("tensorflow")
    is_tensorflow = keras.backend.backend() == "tensorflow" and tensorflow is not None
    return is_tensorflow and bool(tensorflow.inside_function())  # type: ignore[union-attr]


def has_value(tensor: Any) -> bool:
    """Whether a tensor is computed already: not in a compiled function, nor in a loop of JAX."""
    return not is_tracing() and not type(tensor).__name__.endswith("Tracer")


def is_calling() -> bool:
    """Whether the call of a layer or a model is going on."""
    return _global_state.get_global_attribute("current_call_ctx") is not None


def outermost() -> Any:
    """Return the layer or model whose call is going on, with all the others in it; None if there is none."""
    context = _global_state.get_global_attribute("current_call_ctx")
    return None if context is None else context.entry_layer


def is_training() -> bool:
    """Whether the call that is going on is one of training."""
    stack = getattr(_published, "stack", None)
    if stack:
        return bool(stack[-1])
    context = _global_state.get_global_attribute("current_call_ctx")
    return context is not None and bool(context.get_value("training"))


@contextmanager
def publish(training: Any) -> Iterator[None]:
    """Tell the layers inside a model's call whether it is one of training.

    Keras itself tells only layers that ask for it, and on JAX none that a model calls directly.
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
    """Read variables as they are; gives the dtype that mixed precision would cast them to, or None."""
    scope = _backend.get_autocast_scope()
    if scope is None or scope.dtype is None:
        yield None
        return
    with _backend.AutocastScope(None):
        yield scope.dtype


def sync(model: Any) -> None:
    """Bring variables up to date: while ``fit`` runs on JAX, their values are kept elsewhere."""
    if hasattr(model, "jax_state_sync") and not is_tracing():
        model.jax_state_sync()


# -- several devices: tf.distribute ------------------------------------------------------------------


def strategy_of(model: Any) -> AbstractContextManager[Any]:
    """Return the scope to make variables of a model in: each device then gets its own copy."""
    strategy = getattr(model, "_distribute_strategy", None)
    scope: AbstractContextManager[Any] = nullcontext() if strategy is None else strategy.scope()
    return scope


def replicas() -> int:
    """Return on how many devices the call that is going on runs at the same time."""
    context = _replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def mean_over_replicas(tensor: Any) -> Any:
    """Return the mean of what a tensor is on each device, so that all of them go on alike."""
    context = _replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_reduce(sys.modules["tensorflow"].distribute.ReduceOp.MEAN, tensor)


def _replica_context() -> Any:
    tensorflow = sys.modules.get("tensorflow")
    if keras.backend.backend() != "tensorflow" or tensorflow is None:
        return None
    return tensorflow.distribute.get_replica_context()
