"""First pass: replace the ``Mark`` nodes of the trace by real quantization."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from lilliput.errors import ExportError
from lilliput.export.passes.graph import Draft, array_of, producer
from lilliput.export.passes.integers import Array, Stored, bounds, storage, weight_of
from lilliput.frameworks.exporting.simulation import DOMAIN, Placement, to_array


def replace_marks(draft: Draft) -> None:
    """Write activations as QuantizeLinear and DequantizeLinear, weights as integer constants."""
    marks = [node for node in draft.graph if node.domain == DOMAIN]
    _number_calls(draft, marks)
    cache: dict[int, Stored] = {}
    for node in reversed(marks):
        placement = draft.placements[node.attributes["id"].as_int()]
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            continue  # a weight with two quantizers: the last one counts
        if placement.is_weight:
            _write_weight(draft, node, placement, cache)
        else:
            draft.replace(node.outputs[0], _quantized(draft, node, placement))
    draft.sweep()
    _multiply_constants(draft)
    left = [node for node in draft.graph.all_nodes() if node.domain == DOMAIN]
    if left:
        placement = draft.placements[left[0].attributes["id"].as_int()]
        raise ExportError(
            f"layer {placement.wrapper.name!r} is quantized inside a branch or loop of the graph, which "
            "cannot be exported; move it out of torch.cond or similar operators."
        )
    draft.model.opset_imports.pop(DOMAIN, None)


def _number_calls(draft: Draft, marks: list[ir.Node]) -> None:
    """Record which tensor belongs to which call of a layer: nodes are in order of execution."""
    calls: dict[tuple[int, int], int] = defaultdict(int)
    for node in marks:
        placement, position = (node.attributes[key].as_int() for key in ("id", "position"))
        if not draft.placements[placement].is_weight:
            given = node.attributes.get("call")
            call = calls[placement, position] if given is None else given.as_int()
            draft.tensors[placement, position, call] = node.outputs[0]
            calls[placement, position] += 1


def _write_weight(
    draft: Draft, node: ir.Node, placement: Placement, cache: dict[int, Stored]
) -> None:
    mark = node.outputs[0]
    layer = placement.wrapper.layer_info
    name = layer.name if layer.name.endswith(layer.weight_name) else f"{layer.name}.weight"
    if placement.qparams is None:
        draft.replace(mark, draft.constant(placement.weight(), f"{name}_simulated"))
        return
    if id(placement) not in cache:
        cache[id(placement)] = weight_of(placement)
    stored = cache[id(placement)]
    _skip_masks(draft, mark, stored)
    for use in list(mark.uses()):
        order = use.node.attributes.get("perm")
        if use.node.op_type == "Transpose" and order is not None:
            turned = stored.transposed(tuple(order.as_ints()))
            output = turned.write(draft, node, f"{name}_transposed", use.node.outputs[0])
            draft.replace(use.node.outputs[0], output)
            draft.graph.remove(use.node, safe=True)
    if mark.uses() or mark.is_graph_output():
        draft.replace(mark, stored.write(draft, node, name, mark))


def _skip_masks(draft: Draft, mark: ir.Value, stored: Stored) -> None:
    """Drop a product with a mask that is already in the integers."""
    for use in list(mark.uses()):
        other = use.node.inputs[1 - use.idx] if use.node.op_type == "Mul" else None
        mask = array_of(other)
        if mask is not None and np.array_equal(stored.reals() * mask, stored.reals()):
            draft.replace(use.node.outputs[0], mark)
            draft.graph.remove(use.node, safe=True)


def _quantized(draft: Draft, node: ir.Node, placement: Placement) -> ir.Value:
    """Return the tensor of a Mark, clipped, quantized and dequantized."""
    tensor = node.inputs[0]
    if placement.qparams is None or tensor is None:
        raise ExportError(f"{placement.name}: it has no integer grid.")
    grid = placement.qparams.grid
    if grid.group_size is not None:
        raise ExportError(
            f"{placement.name}: activations cannot be exported with a scale per group."
        )
    kind = tensor.dtype or ir.DataType.FLOAT
    if kind not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        raise ExportError(
            f"{placement.name}: ONNX cannot quantize {kind.name} tensors; use float32."
        )
    if grid.is_dynamic and kind != ir.DataType.FLOAT:
        raise ExportError(
            f"{placement.name}: ONNX quantizes float32 dynamically, this is {kind.name}; use model.float()."
        )
    if grid.is_dynamic:
        return _quantized_in_each_call(draft, node, tensor)
    dtype = storage(grid, is_weight=False)
    scale = to_array(placement.qparams.scale).astype(np.float32)
    zero = np.broadcast_to(to_array(placement.qparams.zero_point).astype(np.int64), scale.shape)
    low, high = bounds(dtype)
    if zero.min() < low or zero.max() > high:
        raise ExportError(
            f"{placement.name}: its zero point {zero.ravel()[:4].tolist()} does not fit into {dtype.name}."
        )
    if (grid.low, grid.high) != (low, high):
        tensor = _clipped(draft, node, tensor, scale, zero, placement)
    parameters = [
        draft.constant(scale.astype(kind.numpy()), f"{placement.name}_scale"),
        draft.constant(zero.astype(dtype.numpy()), f"{placement.name}_zero_point"),
    ]
    axis = {} if grid.axis is None else {"axis": grid.axis}
    integers = draft.insert(
        node, "QuantizeLinear", [tensor, *parameters], axis, like=tensor, dtype=dtype
    )
    return draft.insert(node, "DequantizeLinear", [integers, *parameters], axis, like=tensor)


def _quantized_in_each_call(draft: Draft, node: ir.Node, tensor: ir.Value) -> ir.Value:
    """Return a tensor quantized to its own range and dequantized."""
    integers = draft.insert(
        node, "DynamicQuantizeLinear", [tensor], like=tensor, dtype=ir.DataType.UINT8, outputs=3
    )
    scale, zero = integers.producer().outputs[1:]  # type: ignore[union-attr]
    scale.type, zero.type = (ir.TensorType(x) for x in (ir.DataType.FLOAT, ir.DataType.UINT8))
    scale.shape = zero.shape = ir.Shape([])
    return draft.insert(node, "DequantizeLinear", [integers, scale, zero], like=tensor)


def _clipped(
    draft: Draft,
    node: ir.Node,
    tensor: ir.Value,
    scale: Array,
    zero: Array,
    placement: Placement,
) -> ir.Value:
    """Return a tensor clipped to the range of a grid that is narrower than its data type."""
    if scale.ndim or placement.qparams is None:
        raise ExportError(
            f"{placement.name}: a range narrower than the data type can be exported with one scale only."
        )
    grid = placement.qparams.grid
    kind = (tensor.dtype or ir.DataType.FLOAT).numpy()
    ends = [
        draft.constant(np.asarray((end - zero) * scale).astype(kind), f"{placement.name}_{name}")
        for end, name in ((grid.low, "low"), (grid.high, "high"))
    ]
    return draft.insert(node, "Clip", [tensor, *ends], like=tensor)


def _multiply_constants(draft: Draft) -> None:
    """Multiply weights by masks of pruners, which torch keeps in the graph if they are large."""
    for node in list(draft.graph):
        if producer(node.outputs[0], "Mul") is None:
            continue
        first, second = (array_of(x) for x in node.inputs)
        if first is not None and second is not None:
            name = f"{node.inputs[0].name}_masked" if node.inputs[0] is not None else "masked"
            draft.replace(node.outputs[0], draft.constant(first * second, name))
    draft.sweep()
