"""For ONNX Runtime: a Linear on sequences as a Gemm on rows, which has an integer kernel with bias."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, array_of, only_reader, producer
from lilliput.export.passes.integers import read
from lilliput.export.passes.propagate import quantize_behind


def flatten_linears(draft: Draft) -> None:
    """Turn MatMul and Add into Reshape, Gemm and Reshape, if input and weight are integers."""
    rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in [node for node in draft.graph if node.op_type == "MatMul"]:
        add = only_reader(node.outputs[0])
        if add is not None and add.op_type == "Add" and _is_linear(node, add):
            _flatten(draft, node, add, rows)
    draft.sweep()


def _is_linear(node: ir.Node, add: ir.Node) -> bool:
    stored, shape = read(node.inputs[1]), add.outputs[0].shape
    source = producer(node.inputs[0], "DequantizeLinear")
    if stored is None or source is None or shape is None or len(shape) < 3:
        return False
    if array_of(source.inputs[1]) is None:
        return False  # it is quantized dynamically
    if stored.integers.ndim != 2 or stored.block_size is not None:
        return False
    bias = _bias(node, add)
    return bias is not None and bias[1].shape == stored.integers.shape[1:]


def _bias(node: ir.Node, add: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
    array = array_of(other)
    return None if array is None or other is None else (other, array)


def _flatten(
    draft: Draft, node: ir.Node, add: ir.Node, rows: dict[ir.Value, tuple[ir.Value, ir.Value]]
) -> None:
    """Replace two nodes by a Gemm; ``rows`` maps tensors to their form as rows and its origin."""
    data, weight, found = node.inputs[0], node.inputs[1], _bias(node, add)
    shape = add.outputs[0].shape
    if data is None or weight is None or weight.shape is None or found is None or shape is None:
        return
    depth, width = weight.shape
    if data not in rows:
        rows[data] = _rows(draft, node, data, int(depth)), data  # type: ignore[arg-type]
    flat, origin = rows[data]
    sizes = _sizes(draft, node, origin, shape)
    gemm = draft.insert(node, "Gemm", [flat, weight, found[0]], like=add.outputs[0])
    gemm.producer().name = node.name  # type: ignore[union-attr]
    gemm.shape = ir.Shape([prod(shape[:-1]), width])
    draft.replace(add.outputs[0], gemm)
    last = _last(gemm)
    back = _put_back(draft, last, sizes, shape)
    if back is not None:
        rows[back] = last, origin


def _sizes(draft: Draft, before: ir.Node, origin: ir.Value, shape: ir.Shape) -> ir.Value:
    """Return the original shape: a constant, or with several dynamic sizes the shape of the input."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) <= 1:
        return draft.constant(np.asarray(sizes), _name(sizes))
    source = producer(origin, "DequantizeLinear")
    read_from = origin if source is None else source.inputs[0]
    whole = ir.DataType.INT64
    leading = draft.insert(before, "Shape", [read_from], {"end": -1}, like=origin, dtype=whole)
    width = draft.constant(np.asarray(sizes[-1:]), _name(sizes[-1:]))
    joined = draft.insert(before, "Concat", [leading, width], {"axis": 0}, like=origin, dtype=whole)
    leading.shape, joined.shape = ir.Shape([len(sizes) - 1]), ir.Shape([len(sizes)])
    return joined


def _last(value: ir.Value) -> ir.Value:
    """Return a layer's output after its activation and quantizer."""
    start = value
    behind: list[ir.Value] = []
    while (reader := only_reader(value)) is not None:
        if reader.op_type not in ("Relu", "Clip", "QuantizeLinear", "DequantizeLinear"):
            break
        if reader.inputs[0] is not value:
            break
        value = reader.outputs[0]
        behind.append(value)
    while behind and producer(behind[-1], "DequantizeLinear") is None:
        behind.pop()
    for value in behind:
        value.shape = start.shape
    return behind[-1] if behind else start


def _put_back(draft: Draft, value: ir.Value, sizes: ir.Value, shape: ir.Shape) -> ir.Value | None:
    """Restore the shape of a tensor of rows for all its readers, and return what they read."""
    place = value.producer()
    if place is None:
        return None
    node = ir.node("Reshape", [value, sizes])
    node.metadata_props.update(place.metadata_props)
    draft.graph.insert_after(place, node)
    output = node.outputs[0]
    output.type, output.shape = value.type, shape
    held = [key for key, tensor in draft.tensors.items() if tensor is value]
    draft.replace(value, output)
    draft.tensors.update(dict.fromkeys(held, value))  # the rows are compared
    node.replace_input_with(0, value)
    return quantize_behind(draft, node)


def _rows(draft: Draft, before: ir.Node, value: ir.Value, depth: int) -> ir.Value:
    """Return a dequantized tensor as rows, dequantized again."""
    source = producer(value, "DequantizeLinear")
    target = draft.constant(np.asarray([-1, depth]), _name([-1, depth]))
    output = draft.insert(before, "Reshape", [value, target], like=value)
    output.shape = ir.Shape([None if value.shape is None else prod(value.shape[:-1]), depth])
    if source is None or source.inputs[0] is None:
        return output
    integers, parameters = source.inputs[0], source.inputs[1:3]
    again = draft.insert(
        before, "QuantizeLinear", [output, *parameters], like=output, dtype=integers.dtype
    )
    return draft.insert(before, "DequantizeLinear", [again, *parameters], like=output)


def _name(sizes: list[int]) -> str:
    return "shape_" + "_".join("n" if size < 0 else str(size) for size in sizes)
