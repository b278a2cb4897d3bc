"""For ONNX Runtime: weights that are stored in four bits and multiplied in eight.

The four-bit kernel (``MatMulNBits``) is as fast as float with 16 rows and slower with more, on CPUs
without VNNI. Those for eight bits are nearly as fast with one row, and much faster with many. So the
file contains four bits in groups, and a few nodes without inputs widen them to eight, which the runtime
computes once, when it loads the file: ``Cast → Sub → Mul`` to the values of the groups, then
``QuantizeLinear``.

stories15M, speed relative to float in ONNX Runtime 1.31 on AVX2, one thread, with 1, 16 and 128 tokens:
``MatMulNBits`` 2.8, 1.2 and 0.9 in blocks of 32, 2.5, 1.0 and 0.9 in blocks of 128, with float activations
1.0, 0.8 and 1.0; the kernels for eight bits, in a file of ``quantize_dynamic``, 2.3, 1.8 and 1.8.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lilliput.errors import ExportError
from lilliput.export.passes.graph import Draft
from lilliput.export.passes.integers import Array, cast, storage
from lilliput.frameworks.exporting.grid import on_grid
from lilliput.frameworks.exporting.simulation import Placement, to_array

_MAKERS = frozenset({"Transpose", "QuantizeLinear", "Reshape", "Mul", "Sub", "Cast"})
_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)


def pack_groups(draft: Draft) -> None:
    """Store weights as their original groups, and let the runtime widen them."""
    for placement in {id(x.wrapper): x for x in draft.placements if x.is_weight}.values():
        if placement.qparams is not None and placement.qparams.groups is not None:
            _pack(draft, placement)
    draft.sweep()


def packed_type(value: ir.Value | None) -> str:
    """Return the four-bit type that a weight is computed from, or an empty string."""
    while value is not None and value.dtype not in _FOUR_BITS:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _MAKERS else None
    is_constant = value is not None and value.const_value is not None
    return value.dtype.name.lower() if is_constant and value is not None and value.dtype else ""


def _pack(draft: Draft, placement: Placement) -> None:
    """Replace the integers of a weight, transposed or not, by nodes that compute them."""
    wide = on_grid(placement)
    readers = [
        x for x in draft.graph.initializers.values() if x.uses() and x.const_value is not None
    ]
    found = [
        (value, is_turned)
        for value in readers
        for is_turned in (False, True)
        if _holds(value, wide.integers.T if is_turned else wide.integers)
    ]
    rows = _computed(draft, placement, wide.integers, wide.scale) if found else None
    for value, is_turned in found if rows is not None else ():
        first = draft.graph[0]
        made = rows
        if is_turned:
            node = rows.producer()  # type: ignore[union-attr]
            turned = ir.node("Transpose", [rows], {"perm": [1, 0]})
            draft.graph.insert_after(node or first, turned)
            made = turned.outputs[0]
            made.type, made.shape = ir.TensorType(ir.DataType.INT8), value.shape
        value.replace_all_uses_with(made)  # type: ignore[arg-type]


def _holds(value: ir.Value, integers: Array) -> bool:
    tensor = value.const_value
    if tensor is None or value.dtype != ir.DataType.INT8 or tuple(tensor.shape) != integers.shape:
        return False
    return np.array_equal(tensor.numpy(), integers)


def _computed(draft: Draft, placement: Placement, wide: Array, columns: Array) -> ir.Value | None:
    """Return the integers of a weight, computed from its groups; None if these differ in size."""
    held = placement.qparams.groups if placement.qparams is not None else None
    if held is None or held.qparams.grid.axis is None:
        return None
    axis, size = held.qparams.grid.axis % 2, held.qparams.grid.group_size or 1
    integers, scale, zero = (
        to_array(x) for x in (held.integers, held.qparams.scale, held.qparams.zero_point)
    )
    if integers.shape[axis] % size:
        return None
    shape = list(scale.shape)
    parts = [*shape[: axis + 1], size, *shape[axis + 1 :]]
    apart = np.expand_dims(scale.astype(np.float32), axis + 1)
    zero = np.expand_dims(np.broadcast_to(zero, scale.shape), axis + 1)
    _check(placement, wide, integers.reshape(parts), apart, zero, columns)
    dtype = storage(held.qparams.grid, is_weight=True)
    first, name = draft.graph[0], f"{placement.wrapper.name}.weight"
    packed = draft.constant(cast(integers, dtype), f"{name}_in_groups")
    zeros = draft.constant(cast(zero, dtype), f"{name}_group_zero_point")
    to_float = {"to": ir.DataType.FLOAT.value}

    def add(
        op: str, inputs: list[ir.Value], attributes: dict[str, int], size: list[int]
    ) -> ir.Value:
        made = draft.insert(first, op, inputs, attributes, like=packed, dtype=ir.DataType.FLOAT)
        made.shape = ir.Shape(size)
        return made

    steps = add("Cast", [packed], to_float, list(integers.shape))
    steps = add("Reshape", [steps, draft.constant(np.asarray(parts), f"{name}_groups")], {}, parts)
    shift = add("Cast", [zeros], to_float, list(zero.shape))
    steps = add("Sub", [steps, shift], {}, parts)
    reals = add("Mul", [steps, draft.constant(apart, f"{name}_group_scale")], {}, parts)
    whole = draft.constant(np.asarray(integers.shape), f"{name}_shape")
    reals = add("Reshape", [reals, whole], {}, list(integers.shape))
    ends = [
        draft.constant(columns, f"{name}_output_scale"),
        draft.constant(np.zeros(len(columns), np.int8), f"{name}_output_zero_point"),
    ]
    result = add("QuantizeLinear", [reals, *ends], {"axis": 1 - axis}, list(integers.shape))
    result.type = ir.TensorType(ir.DataType.INT8)
    return result


def _check(
    placement: Placement, wide: Array, integers: Array, scale: Array, zero: Array, columns: Array
) -> None:
    """Raise if the file would compute other integers than the simulation."""
    axis = 1 - (placement.qparams.groups.qparams.grid.axis or 0) % 2  # type: ignore[union-attr]
    reals = ((integers - zero).astype(np.float32) * scale).reshape(wide.shape)
    made = np.rint(reals / np.expand_dims(columns, 1 - axis))
    if not np.array_equal(made, wide):
        raise ExportError(
            f"{placement.name}: {int((made != wide).sum())} integers of its groups do not match the "
            "simulation after rounding; the weight has changed since it was quantized."
        )
