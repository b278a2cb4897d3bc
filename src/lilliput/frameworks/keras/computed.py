"""Computed weights: the value of ``layer.kernel`` outside of the layer's call.

A layer uses tensors, but users expect a variable: they read its path, assign to it, freeze it. So they get
a variable that reads as the compressed value and otherwise behaves like the raw one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from lilliput.frameworks import part_of


class ComputedVariable(keras.Variable):  # type: ignore[misc]
    """A raw variable that reads as its compressed value; assignments go to the raw one.

    On torch its tensor cannot be edited in place, since the edit would be lost.
    """

    __slots__ = ("_lilliput_compute", "_lilliput_raw")

    def __init__(self, variable: Any, compute: Callable[[], Any]) -> None:
        # One dictionary for both: name, regularizer and ``trainable`` are those of the raw
        # variable.
        object.__setattr__(self, "__dict__", vars(variable))
        object.__setattr__(self, "_lilliput_raw", variable)
        object.__setattr__(self, "_lilliput_compute", compute)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._lilliput_raw, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.value, name)  # attributes of tensors of the backend: T, detach()

    @property
    def value(self) -> Any:
        """The current compressed value."""
        value = self._lilliput_compute()
        if keras.backend.backend() != "torch":
            return value
        way = "Assign to the variable: layer.{name}.assign(value), or edit wrapper.weight"
        protect = part_of("torch", "computed").protect
        return protect(value, self._lilliput_raw.value, self.name, way)

    @property
    def handle(self) -> Any:
        """The raw variable of TensorFlow."""
        return self._lilliput_raw.handle

    def numpy(self) -> Any:
        """Return the compressed value as a NumPy array."""
        return keras.ops.convert_to_numpy(self.value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def assign(self, value: Any) -> Any:
        """Assign to the raw variable."""
        return self._lilliput_raw.assign(value)

    def assign_add(self, value: Any) -> Any:
        """Add to the raw variable."""
        return self._lilliput_raw.assign_add(value)

    def assign_sub(self, value: Any) -> Any:
        """Subtract from the raw variable."""
        return self._lilliput_raw.assign_sub(value)

    def __repr__(self) -> str:
        return f"<ComputedVariable path={self.path}, shape={self.shape}, value={self.numpy()}>"
