"""What Keras knows of the call that is going on. All of its private parts that we need are here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src import backend as _backend
from keras.src.backend.common import global_state as _global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope as _in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope as is_symbolic

__all__ = ["full_precision", "is_symbolic", "is_tracing", "is_training", "publish", "sync"]

_published = threading.local()


def is_tracing() -> bool:
    """Whether this code runs to build a graph, and not to compute."""
    if _in_stateless_scope():
        return True
    tensorflow = sys.modules.get("tensorflow")
    is_tensorflow = keras.backend.backend() == "tensorflow" and tensorflow is not None
    return is_tensorflow and bool(tensorflow.inside_function())  # type: ignore[union-attr]


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
