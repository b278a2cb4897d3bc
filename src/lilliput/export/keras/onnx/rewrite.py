"""Bring the graph of tf2onnx into the form that the passes expect from torch.

- changes of shape are moved after elementwise operations, so that layer, norm, activation and
  quantizer are consecutive;
- a MatMul with a weight becomes a Gemm;
- products and sums with constants after a layer, as Keras computes a batch norm, become a
  BatchNormalization.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, array_of, only_reader, path_of
from lilliput.frameworks.exporting.simulation import Array

_UNARY = ("Relu", "Clip", "LeakyRelu", "Mark")
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def rewrite(draft: Draft) -> None:
    """Apply all rewrites."""
    _cancel_transposes(draft)
    for node in list(draft.graph):
        if node.op_type in ("Squeeze", "Reshape"):
            _sink(draft, node)
    for node in [x for x in draft.graph if x.op_type == "MatMul"]:
        _to_gemm(draft, node)
    for node in [x for x in draft.graph if x.op_type in _LAYERS]:
        _to_norm(draft, node)
    draft.sweep()


def _cancel_transposes(draft: Draft) -> None:
    """Drop a Transpose of a Transpose that undoes it."""
    for node in [x for x in draft.graph if x.op_type == "Transpose"]:
        before = None if node.inputs[0] is None else node.inputs[0].producer()
        if before is None or before.op_type != "Transpose" or before.inputs[0] is None:
            continue
        first, second = (list(x.attributes["perm"].as_ints()) for x in (before, node))
        if [first[i] for i in second] == sorted(first):
            draft.replace(node.outputs[0], before.inputs[0])
    draft.sweep()


def _sink(draft: Draft, node: ir.Node) -> None:
    """Move a change of shape after the following operations, as long as they are elementwise."""
    source = node.inputs[0]
    if source is None or only_reader(source) is not node:
        return
    maker = source.producer()
    if maker is None or maker.op_type not in ("Conv", "MatMul", "Gemm"):
        return
    while (reader := only_reader(node.outputs[0])) is not None:
        position = list(reader.inputs).index(node.outputs[0])
        if reader.op_type in ("Add", "Mul"):
            other = reader.inputs[1 - position]
            constant = array_of(other)
            moved = None if constant is None else _moved(node, constant)
            if moved is None or other is None:
                return
            reader.replace_input_with(1 - position, draft.constant(moved, f"{other.name}_moved"))
        elif reader.op_type not in _UNARY or position:
            return
        node = _swapped(draft, node, reader, position)


def _moved(node: ir.Node, constant: Array) -> Array | None:
    """Return a constant in the form needed before a change of shape, or None if impossible."""
    before = None if node.inputs[0] is None else node.inputs[0].shape
    after = node.outputs[0].shape
    if constant.size == 1:
        return constant.reshape(())
    if before is None or after is None:
        return None
    if node.op_type == "Squeeze":
        axes = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None:
            return None
        missing = len(before) - len(axes) - constant.ndim
        wide = constant.reshape([1] * missing + list(constant.shape))
        return np.expand_dims(wide, tuple(int(x) % len(before) for x in axes))
    is_last = constant.shape[-1] == constant.size == before[-1] == after[-1]
    return constant.reshape(-1) if is_last else None


def _swapped(draft: Draft, node: ir.Node, reader: ir.Node, position: int) -> ir.Node:
    """Move a node after its only reader, and return it."""
    before, after, output = node.inputs[0], node.outputs[0], reader.outputs[0]
    moved = ir.node(node.op_type, [output, *node.inputs[1:]], dict(node.attributes))
    moved.metadata_props.update(node.metadata_props)
    moved.outputs[0].shape, moved.outputs[0].type = output.shape or after.shape, after.type
    draft.graph.insert_after(reader, moved)
    draft.replace(output, moved.outputs[0])
    moved.replace_input_with(0, output)
    reader.replace_input_with(position, before)
    if before is not None:
        output.shape, output.type = before.shape, before.type
    draft.graph.remove(node, safe=True)
    return moved


def _to_gemm(draft: Draft, node: ir.Node) -> None:
    """Turn a product of rows with a weight into a Gemm."""
    data, weight = node.inputs[:2]
    shape = None if data is None else data.shape
    size = None if weight is None else weight.shape
    is_weight = weight is not None and (
        array_of(weight) is not None or _is_integer_constant(weight)
    )
    if shape is None or size is None or len(shape) != 2 or len(size) != 2 or not is_weight:
        return
    product = draft.insert(node, "Gemm", [data, weight], like=node.outputs[0])
    draft.replace(node.outputs[0], product)


def _is_integer_constant(value: ir.Value) -> bool:
    node = value.producer()
    is_dequantized = node is not None and node.op_type == "DequantizeLinear"
    return is_dequantized and array_of(node.inputs[0]) is not None  # type: ignore[union-attr]


def _to_norm(draft: Draft, layer: ir.Node) -> None:
    """Turn products and sums with per-channel constants into one BatchNormalization."""
    output = layer.outputs[0]
    rank = None if output.shape is None else len(output.shape)
    gamma: Array = np.ones(1)
    beta: Array = np.zeros(1)
    nodes: list[ir.Node] = []
    value = output
    while rank is not None and (reader := only_reader(value)) is not None:
        if reader.op_type not in ("Add", "Mul") or reader.domain:
            break
        position = list(reader.inputs).index(value)
        constant = _channels(array_of(reader.inputs[1 - position]), rank)
        if constant is None:
            break
        if reader.op_type == "Mul":
            gamma, beta = gamma * constant, beta * constant
        else:
            beta = beta + constant
        nodes.append(reader)
        value = reader.outputs[0]
    count = _count(layer)
    if not nodes or count is None or {x.size for x in (gamma, beta)} - {1, count}:
        return
    name = f"{path_of(layer) or nodes[0].name}"
    if (gamma == 1).all() and len(layer.inputs) == 2:
        bias = np.broadcast_to(beta, (count,)).astype(np.float32)
        layer.resize_inputs(3)
        layer.replace_input_with(2, draft.constant(bias, f"{name}.bias"))
        draft.replace(value, output)
        return
    arrays = [gamma, beta, np.zeros(1), np.ones(1)]
    names = [f"{name}_norm_{x}" for x in ("scale", "shift", "mean", "variance")]
    constants = [
        draft.constant(np.broadcast_to(x, (count,)).astype(np.float32), name)
        for x, name in zip(arrays, names, strict=True)
    ]
    norm = draft.insert(
        nodes[-1], "BatchNormalization", [output, *constants], {"epsilon": 0.0}, like=value
    )
    draft.replace(value, norm)


def _channels(constant: Array | None, rank: int) -> Array | None:
    """Return a constant as one number per channel, or None if it has another form."""
    if constant is None or constant.size == 1:
        return None if constant is None else constant.reshape(1).astype(np.float64)
    axis = constant.ndim - rank + 1
    if axis < 0 or constant.shape[axis] != constant.size:
        return None
    return constant.reshape(-1).astype(np.float64)


def _count(layer: ir.Node) -> int | None:
    """Return how many output channels a layer has."""
    shape = layer.outputs[0].shape
    size = None if shape is None or len(shape) < 2 else shape[1]
    return size if isinstance(size, int) else None
