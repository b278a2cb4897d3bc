"""The axes of a layer's kernel and inputs over which it accumulates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from lilliput.frameworks.exporting.simulation import Array, Tensor


@dataclass(frozen=True)
class Sums:
    """The axes over which a layer accumulates.

    ``outputs`` and ``inputs`` are axes of its kernel, the others are positions; ``data`` are the axes of
    its input that correspond to ``inputs``. The ``channels`` of the data are in ``groups``. If it
    ``is_padded``, zeros are added up as well.
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    data: tuple[int, ...]
    channels: int
    groups: int = 1
    is_padded: bool = False

    def rows(self, kernel: Array) -> Array:
        """Return a kernel as (outputs, inputs, *positions)."""
        count = len(self.outputs) + len(self.inputs)
        moved = np.moveaxis(kernel, (*self.outputs, *self.inputs), range(count))
        return moved.reshape(prod(moved.shape[: len(self.outputs)]), -1, *moved.shape[count:])

    def by_channel(self, data: Array) -> Array | None:
        """Return the layer's input with one row per channel, or None if it has another form."""
        needed = max(axis + 1 if axis >= 0 else -axis for axis in self.data)
        if data.ndim < needed or not data.size:
            return None
        moved = np.moveaxis(data, self.data, range(len(self.data)))
        is_it = prod(moved.shape[: len(self.data)]) == self.channels
        return moved.reshape(self.channels, -1) if is_it else None


class AddingUp(Protocol):
    """The module ``export.sums`` of a framework."""

    def sums_of(self, wrapper: Any) -> Sums | None:
        """Return the axes over which a layer accumulates, or None if it can never saturate."""

    def on_inputs(self, wrapper: Any, task: Callable[[list[Tensor]], None]) -> list[Any]:
        """Call ``task(tensors)`` with the quantized inputs of a layer; return removable handles."""
