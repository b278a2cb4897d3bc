"""Learned variables: values that an algorithm trains besides the weights, such as the scales of LSQ.

A graph cannot initialize a trainable variable: on JAX, a call does not return new values for it.
So a learned variable is the sum of two: a trained one, and a start, which a call may set. In eager
execution, the trained one takes the whole value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from lilliput.frameworks.keras.computed import ComputedVariable
from lilliput.frameworks.keras.grad import straight_through
from lilliput.frameworks.keras.scopes import is_tracing
from lilliput.frameworks.keras.variables import tensor_of


@dataclass(frozen=True)
class Parameter:
    """A value that a wrapper stores as a trained variable, and its lower bound."""

    value: Any
    at_least: float | None = None

    def bound(self) -> Callable[[Any], Any] | None:
        """Return the constraint that Keras applies to a variable after each step."""
        least = self.at_least
        return None if least is None else lambda variable: ops.maximum(variable, least)


class LearnedVariable(ComputedVariable):
    """A trained variable and its start, read as their sum; values below the bound read as the bound."""

    __slots__ = ("_lilliput_start",)

    def __init__(self, variable: Any, start: Any, at_least: float | None) -> None:
        def compute() -> Any:
            total = tensor_of(variable) + ops.stop_gradient(tensor_of(start))
            if at_least is None:
                return total
            # The gradient passes, so that training can leave the bound again.
            return straight_through(total, ops.stop_gradient(ops.maximum(total, at_least)))

        super().__init__(variable, compute)
        object.__setattr__(self, "_lilliput_start", start)

    def assign(self, value: Any) -> Any:
        """Set the sum: by its start while a graph is traced, otherwise by the trained variable."""
        value = ops.stop_gradient(ops.cast(tensor_of(value), self.dtype))
        trained, start = self._lilliput_raw, self._lilliput_start
        if is_tracing():
            start.assign(value - ops.stop_gradient(tensor_of(trained)))
        else:
            trained.assign(value)
            start.assign(ops.zeros_like(value))
        return self


def needs_start() -> bool:
    """Whether training may run in a graph, so that a learned variable needs a start."""
    return bool(keras.backend.backend() != "torch")
