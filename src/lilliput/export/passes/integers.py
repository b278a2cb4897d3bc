"""Integers as ONNX stores them: data types, weights on their grid, and their DequantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.errors import ExportError
from lilliput.export.passes.graph import Draft, array_of, integer_attribute, producer
from lilliput.frameworks.exporting.grid import Scaled, on_grid
from lilliput.frameworks.exporting.simulation import Placement
from lilliput.ops.qparams import Grid

Array = np.ndarray[Any, Any]

_TYPES = {
    (4, True): ir.DataType.INT4,
    (4, False): ir.DataType.UINT4,
    (8, True): ir.DataType.INT8,
    (8, False): ir.DataType.UINT8,
    (16, True): ir.DataType.INT16,
    (16, False): ir.DataType.UINT16,
}
_WIDTHS = {dtype: key for key, dtype in _TYPES.items()}


def storage(grid: Grid, is_weight: bool) -> ir.DataType:
    """Return the smallest type for the integers; only weights are packed to four bits."""
    widths = (4, 8, 16) if is_weight else (8, 16)
    width = next(x for x in widths if grid.bits <= x)
    return _TYPES[width, grid.is_signed]


def bounds(dtype: ir.DataType) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    bits, is_signed = _WIDTHS[dtype]
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)


@dataclass(frozen=True, eq=False)
class Stored(Scaled):
    """A constant as integers.

    Parameters
    ----------
    integers : array of int32
        The integers.
    scale, zero_point : array
        One for all, one per entry of ``axis``, or with ``block_size`` one per block of that axis.
    dtype : onnx_ir.DataType
        The type of the stored integers.
    axis, block_size : int, optional
        As in ``DequantizeLinear``; None: one scale for all, no blocks.
    """

    integers: Array
    scale: Array
    zero_point: Array
    dtype: ir.DataType
    axis: int | None = None
    block_size: int | None = None

    def transposed(self, order: tuple[int, ...]) -> Stored:
        """Return the same with its axes in another order."""
        axis = None if self.axis is None else order.index(self.axis)
        scale, zero = self.scale, self.zero_point
        if self.block_size is not None:
            scale, zero = scale.transpose(order), zero.transpose(order)
        integers = np.ascontiguousarray(self.integers.transpose(order))
        return replace(self, integers=integers, scale=scale, zero_point=zero, axis=axis)

    def per_channel(self, axis: int) -> Stored | None:
        """Return the same with one scale per entry of an axis, or None if scales follow another axis."""
        if self.block_size is not None or self.axis not in (None, axis):
            return self if self.block_size is not None and self.axis != axis else None
        count = self.integers.shape[axis]
        scale, zero = (
            np.array(np.broadcast_to(x.reshape(-1), (count,)))
            for x in (self.scale, self.zero_point)
        )
        return replace(self, scale=scale, zero_point=zero, axis=axis)

    def write(self, draft: Draft, before: ir.Node, name: str, like: ir.Value) -> ir.Value:
        """Add the constants and a DequantizeLinear, and return its output."""
        inputs = [
            draft.constant(cast(self.integers, self.dtype), f"{name}_quantized"),
            draft.constant(self.scale, f"{name}_scale"),
            draft.constant(cast(self.zero_point, self.dtype), f"{name}_zero_point"),
        ]
        attributes = {} if self.axis is None else {"axis": self.axis}
        if self.block_size is not None:
            attributes["block_size"] = self.block_size
        output = draft.insert(before, "DequantizeLinear", inputs, attributes, like=like)
        output.shape = ir.Shape(self.integers.shape)
        return output


def cast(integers: Array, dtype: ir.DataType) -> Array:
    """Return integers in the type that a file stores."""
    return integers.astype(dtype.numpy())


def read(value: ir.Value | None) -> Stored | None:
    """Return the integer constant behind a value, or None."""
    node = producer(value, "DequantizeLinear")
    if node is None:
        return None
    arrays = [array_of(x) for x in node.inputs]
    if any(x is None for x in arrays):
        return None
    integers, scale, zero = arrays
    if integers is None or scale is None or zero is None or node.inputs[0] is None:
        return None
    dtype = node.inputs[0].dtype
    if dtype not in _WIDTHS:
        return None
    block = integer_attribute(node, "block_size", 0) or None
    axis = integer_attribute(node, "axis", 1) if scale.ndim else None
    return Stored(integers.astype(np.int32), scale, zero.astype(np.int32), dtype, axis, block)


def name_of(value: ir.Value) -> str:
    """Return the name under which an integer constant was written."""
    node = value.producer()
    held = None if node is None else node.inputs[0]
    return "weight" if held is None or held.name is None else held.name.removesuffix("_quantized")


def weight_of(placement: Placement) -> Stored:
    """Return the integers of the weight that a layer uses.

    Raises
    ------
    ExportError
        If the weight is not on the grid that its quantizer reports.
    """
    found = on_grid(placement)
    if placement.qparams is None:
        raise ExportError(f"layer {placement.wrapper.name!r}: its weight has no integer grid.")
    dtype = storage(placement.qparams.grid, is_weight=True)
    return Stored(
        found.integers, found.scale, found.zero_point, dtype, found.axis, found.block_size
    )
