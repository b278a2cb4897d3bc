"""Learned variables: what an algorithm trains beside the weights, the scales of LSQ say.

A graph cannot give a trainable variable its first value: on JAX, a call returns no new values of those.
So a learned variable is the sum of two: one that is trained, and a start, which a call may set. Where code
is computed at once, the trained one takes the whole value.
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
    """A value that a wrapper shall hold as one that is trained, and its lower bound."""

    value: Any
    at_least: float | None = None

    def bound(self) -> Callable[[Any], Any] | None:
        """Return what Keras applies to a variable after each step."""
        least = self.at_least
        return None if least is None else lambda variable: ops.maximum(variable, least)


class LearnedVariable(ComputedVariable):
    """A trained variable and its start, read as their sum; below its bound it reads as the bound."""

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
        """Set the sum: by its start while a graph is traced, else by what is trained."""
        value = ops.stop_gradient(ops.cast(tensor_of(value), self.dtype))
        trained, start = self._lilliput_raw, self._lilliput_start
        if is_tracing():
            start.assign(value - ops.stop_gradient(tensor_of(trained)))
        else:
            trained.assign(value)
            start.assign(ops.zeros_like(value))
        return self


def needs_start() -> bool:
    """Whether training may run in a graph, and a learned variable therefore needs a start."""
    return bool(keras.backend.backend() != "torch")
