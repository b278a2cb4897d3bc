"""For ONNX Runtime: look up the integers of a table and dequantize those, not the whole table.

``DequantizeLinear → Gather`` computes every row of an embedding in each call. Eight bits become
``Gather → Cast → Mul``, with the scales of the rows looked up as well. Four bits, which Gather does
not support, become ``GatherBlockQuantized``. If a layer multiplies by the same weights (a tied head), the
table is read from that layer's constant, so that the file contains it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import (
    CONTRIB,
    Draft,
    array_of,
    integer_attribute,
    layers_of,
    producer,
)
from lilliput.export.passes.integers import Stored, cast, name_of, read

_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
_SMALLEST_BLOCK = 16  # of GatherBlockQuantized, and powers of two only


def gather_integers(draft: Draft) -> None:
    """Look up integers wherever a table of integers is dequantized and then looked up."""
    for node in [node for node in draft.graph if node.op_type == "Gather"]:
        lookup = _find(draft, node)
        rows = None if lookup is None else lookup.write()
        if rows is not None:
            rows.shape = node.outputs[0].shape
            draft.replace(node.outputs[0], rows)
    draft.sweep()


def whole_tables(graph: ir.Graph) -> list[str]:
    """Return the tables that are dequantized as a whole although only a few rows are looked up."""
    lookups = [node for node in graph if node.op_type == "Gather" and node.domain == ""]
    values = [x.inputs[0] for x in lookups if read(x.inputs[0]) is not None]
    return [name_of(x) for x in dict.fromkeys(values) if x is not None]


def _find(draft: Draft, node: ir.Node) -> _Lookup | None:
    """Return the lookup of a Gather, or None if it does not select rows of an integer table."""
    stored, source = read(node.inputs[0]), producer(node.inputs[0], "DequantizeLinear")
    ids, is_of_rows = node.inputs[1], integer_attribute(node, "axis", 0) == 0
    if stored is None or source is None or stored.integers.ndim != 2 or not is_of_rows:
        return None
    if ids is None or ids.shape is None:
        return None
    for layer in layers_of(draft.graph):
        other, held = read(layer.inputs[1]), producer(layer.inputs[1], "DequantizeLinear")
        if other is not None and held is not None and _is_transposed(other, stored):
            upright = other.transposed((1, 0))
            return _Lookup(draft, node, held, upright, ids, len(ids.shape), is_turned=True)
    return _Lookup(draft, node, source, stored, ids, len(ids.shape))


def _is_transposed(other: Stored, stored: Stored) -> bool:
    if other.integers.shape != stored.integers.shape[::-1]:
        return False
    return np.array_equal(other.reals().T, stored.reals())


@dataclass(eq=False)
class _Lookup:
    """Rows of a table that a Gather selects.

    Parameters
    ----------
    node : onnx_ir.Node
        The Gather.
    source : onnx_ir.Node
        The DequantizeLinear whose constants are read.
    stored : Stored
        The table, rows first.
    ids, rank : onnx_ir.Value, int
        The selected rows, and the number of axes of that tensor.
    is_turned : bool
        Whether the constants have columns first, as a layer multiplies by them. The runtime transposes them
        once, when it loads the file; its kernel for the layer must be the only reader of its constants.
    """

    draft: Draft
    node: ir.Node
    source: ir.Node
    stored: Stored
    ids: ir.Value
    rank: int
    is_turned: bool = False

    def write(self) -> ir.Value | None:
        """Add nodes that look up the rows, and return the rows; None if the runtime does not support it."""
        return self._packed() if self.stored.dtype in _FOUR_BITS else self._plain()

    def _plain(self) -> ir.Value | None:
        """Look up eight or sixteen bits."""
        stored, (table, *scales) = self.stored, self._constants()
        scales = scales if np.any(stored.zero_point) else scales[:1]
        if stored.block_size is not None:
            if stored.axis != 1:
                return None
            inputs = [self._pick(x) for x in (table, *scales)]
            where = {"axis": self.rank, "block_size": stored.block_size}
            return self._insert("DequantizeLinear", inputs, where)
        if stored.axis == 0:
            scales = [self._widen(self._pick(x)) for x in scales]
        # Not DequantizeLinear: the following layer would be treated as one with a quantized input.
        scale, *zeros = scales
        rows = self._to_float(self._pick(table))
        for zero in zeros:
            rows = self._insert("Sub", [rows, self._to_float(zero)])
        return self._insert("Mul", [rows, scale])

    def _packed(self) -> ir.Value | None:
        """Look up four bits."""
        stored, (table, *scales) = self.stored, self._constants()
        if stored.block_size is None and stored.axis != 1:
            size = max(_SMALLEST_BLOCK, 1 << (self._width - 1).bit_length())
            scales = self._by_row()
        else:
            size = stored.block_size or 0
            if stored.axis != 1 or size < _SMALLEST_BLOCK or size & (size - 1):
                return None
        inputs = [table, self.ids, *scales]
        axes = {"gather_axis": 0, "quantize_axis": 1, "block_size": size}
        return self._insert("GatherBlockQuantized", inputs, axes, domain=CONTRIB)

    @property
    def _width(self) -> int:
        return int(self.stored.integers.shape[1])

    def _constants(self) -> list[ir.Value]:
        """Return the integers, scales and zero points, rows first."""
        values = [x for x in self.source.inputs if x is not None]
        return [self._upright(x) for x in values] if self.is_turned else values

    def _upright(self, value: ir.Value) -> ir.Value:
        array = array_of(value)
        if array is None or array.ndim == 2:
            return self._insert("Transpose", [value], {"perm": [1, 0]}, value.dtype)
        return self.draft.constant(array, f"{value.name}_of_rows", value.dtype)

    def _by_row(self) -> list[ir.Value]:
        """Return one scale and zero point per row, in the shape of a block that spans the row."""
        count, name = len(self.stored.integers), name_of(self.source.outputs[0])
        scale, zero = (
            np.array(np.broadcast_to(x.reshape(-1), (count,))).reshape(count, 1)
            for x in (self.stored.scale, self.stored.zero_point)
        )
        arrays = {"row_scale": scale, "row_zero_point": cast(zero, self.stored.dtype)}
        return [self.draft.constant(array, f"{name}_{x}") for x, array in arrays.items()]

    def _pick(self, values: ir.Value) -> ir.Value:
        """Return the selected rows of a constant."""
        return self._insert("Gather", [values, self.ids], {"axis": 0}, values.dtype)

    def _widen(self, values: ir.Value) -> ir.Value:
        """Return one value per selected row, with one more axis."""
        axis = self.draft.constant(np.asarray([self.rank]), f"axis_{self.rank}")
        return self._insert("Unsqueeze", [values, axis], {}, values.dtype)

    def _to_float(self, values: ir.Value) -> ir.Value:
        return self._insert("Cast", [values], {"to": ir.DataType.FLOAT.value})

    def _insert(
        self,
        op_type: str,
        inputs: list[ir.Value],
        attributes: Mapping[str, int | list[int]] = MappingProxyType({}),
        dtype: ir.DataType | None = None,
        domain: str = "",
    ) -> ir.Value:
        like = self.node.outputs[0]
        value = self.draft.insert(
            self.node, op_type, inputs, dict(attributes), like=like, dtype=dtype, domain=domain
        )
        value.shape = None
        return value
