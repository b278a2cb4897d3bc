"""Fourth pass: propagate integers as far as possible, and quantize nothing twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, array_of, bounds_of, integer_attribute, producer

# Operators that move or select numbers, so that integers stay on their grid.
MOVERS = frozenset(
    {
        "MaxPool",
        "GlobalMaxPool",
        "ReduceMax",
        "Reshape",
        "Flatten",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Gather",
        "Expand",
    }
)
_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


def propagate(draft: Draft) -> None:
    """Quantize after ops that only move numbers, then drop repeated quantization."""
    for node in list(draft.graph):
        if node.op_type in MOVERS and node.domain == "":
            quantize_behind(draft, node)
    _drop_repeats(draft)
    draft.sweep()


def drop_idle_clips(draft: Draft) -> None:
    """Drop a Relu or Clip of numbers that are already within its bounds: on a grid, or clipped before."""
    for node in list(draft.graph):
        bounds, source = bounds_of(node), node.inputs[0] if node.inputs else None
        if bounds is None or source is None:
            continue
        low, high = _held_between(source)
        slack = 1e-6 * max((abs(end) for end in (low, high) if math.isfinite(end)), default=0.0)
        if bounds[0] <= low + slack and high - slack <= bounds[1]:
            draft.replace(node.outputs[0], source)
    draft.sweep()


def _held_between(value: ir.Value) -> tuple[float, float]:
    """Return the bounds of a value, as far as known from preceding quantizers and clips."""
    source = producer(value, "DequantizeLinear")
    quantize = None if source is None else producer(source.inputs[0], "QuantizeLinear")
    held = (-math.inf, math.inf) if quantize is None else _grid_range(quantize)
    earlier = value.producer() if quantize is None else _maker(quantize)
    while earlier is not None and (ends := bounds_of(earlier)) is not None:
        held = max(held[0], ends[0]), min(held[1], ends[1])
        earlier = _maker(earlier)
    return held


def _maker(node: ir.Node) -> ir.Node | None:
    """Return the producer of the first input of a node."""
    return None if node.inputs[0] is None else node.inputs[0].producer()


def _grid_range(quantize: ir.Node) -> tuple[float, float]:
    """Return the smallest and the largest number that a QuantizeLinear can return, if known."""
    scale, zero = (array_of(x) for x in quantize.inputs[1:3])
    dtype = quantize.outputs[0].dtype
    if scale is None or zero is None or scale.ndim or dtype not in _EIGHT_BITS:
        return -math.inf, math.inf
    info = np.iinfo(dtype.numpy())
    low, high = (float(scale) * (end - float(zero)) for end in (info.min, info.max))
    return low, high


def quantize_behind(draft: Draft, node: ir.Node) -> ir.Value | None:
    """Quantize the result of an op on integers like its input, so that integer kernels can follow."""
    source = producer(node.inputs[0], "DequantizeLinear")
    output = node.outputs[0]
    if source is None or output.is_graph_output() or any(x.uses() for x in node.outputs[1:]):
        return None
    integers, scale, zero = source.inputs[:3]
    if integers is None or integers.producer() is None or integers.dtype not in _EIGHT_BITS:
        return None  # a weight, or a type that few kernels support
    found = array_of(scale)
    if found is None or found.ndim:
        return None
    readers = [(use.node, use.idx) for use in output.uses()]
    if not readers:
        return None
    before = next(iter(_after(draft.graph, node)))
    quantized = draft.insert(
        before, "QuantizeLinear", [output, scale, zero], like=output, dtype=integers.dtype
    )
    back = draft.insert(before, "DequantizeLinear", [quantized, scale, zero], like=output)
    for reader, position in readers:
        reader.replace_input_with(position, back)
    return back


def _after(graph: ir.Graph, node: ir.Node) -> Iterator[ir.Node]:
    nodes = iter(graph)
    for other in nodes:
        if other is node:
            yield from nodes


def _drop_repeats(draft: Draft) -> None:
    """Reuse a tensor with the same integers, instead of computing them again."""
    known: dict[Any, ir.Value] = {}
    for node in list(draft.graph):
        unit = _unit(node) if node.op_type == "DequantizeLinear" else None
        if unit is None:
            continue
        earlier = producer(unit.source, "DequantizeLinear")
        before = None if earlier is None else _unit(earlier)
        key = unit.source, unit.grid, unit.ends
        if earlier is not None and before is not None and _is_inside(before, unit):
            draft.replace(node.outputs[0], earlier.outputs[0])
        elif key in known:
            draft.replace(node.outputs[0], known[key])
        else:
            known[key] = node.outputs[0]


@dataclass(frozen=True, eq=False)
class _Unit:
    """An optional Clip, a QuantizeLinear and a DequantizeLinear: their input and parameters."""

    source: ir.Value
    grid: Any
    ends: Any


def _is_inside(before: _Unit, unit: _Unit) -> bool:
    """Whether quantizing again would change nothing."""
    if before.grid != unit.grid:
        return False
    mover = before.source.producer()
    while before.ends is None and mover is not None and mover.op_type in MOVERS:
        earlier = producer(mover.inputs[0], "DequantizeLinear")
        found = None if earlier is None else _unit(earlier)
        if found is None or found.grid != unit.grid:
            break
        before, mover = found, found.source.producer()
    return unit.ends is None or unit.ends == before.ends


def _unit(node: ir.Node) -> _Unit | None:
    quantize = producer(node.inputs[0], "QuantizeLinear")
    if quantize is None or node.inputs[0] is None:
        return None
    parameters = _bytes(*node.inputs[1:3])
    if parameters != _bytes(*quantize.inputs[1:3]):
        return None
    source, ends = quantize.inputs[0], None
    clip = producer(source, "Clip")
    if clip is not None and all(array_of(x) is not None for x in clip.inputs[1:3]):
        ends, source = _bytes(*clip.inputs[1:3]), clip.inputs[0]
    if source is None:
        return None
    grid = parameters, node.inputs[0].dtype, integer_attribute(node, "axis", 1)
    return _Unit(source, grid, ends)


def _bytes(*values: ir.Value | None) -> tuple[bytes | None, ...]:
    arrays = [array_of(value) for value in values]
    return tuple(None if x is None else x.tobytes() for x in arrays)
