"""List the layers of a file: their names, types and costs, and why one cannot run on integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from lilliput.export.kernels import INTEGER_KERNELS
from lilliput.export.passes.four_bits import packed_type
from lilliput.export.passes.graph import array_of, attributes_of, layers_of, only_reader, producer
from lilliput.export.passes.integers import read
from lilliput.export.passes.recurrent import is_recurrent, weight_type, why_float
from lilliput.frameworks.exporting.layer import Layer
from lilliput.graph.onnx_macs import Shape, UnknownShapeError, count_macs

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
# Operators between a layer and the quantizer of its output, which runtimes fuse into the layer.
_FUSED = frozenset({"Relu", "Clip"})
_WITH_KERNELS = frozenset({"Conv", "Gemm", "MatMul"})


def list_layers(graph: ir.Graph, given: Mapping[str, int] | None = None) -> list[Layer]:
    """Return the layers in order of execution, with the reason for those in float.

    ``given`` are the dynamic sizes for which costs are counted; 1 by default.
    """
    sizes = {**_ones(graph), **(given or {})}
    layers = []
    for node in layers_of(graph):
        if is_recurrent(node):
            layers.append(_recurrent_layer(node, sizes))
            continue
        weight = node.inputs[1]
        stored = read(weight)
        is_constant = stored is not None or array_of(weight) is not None
        dtype = "" if weight is None or weight.dtype is None else weight.dtype.name.lower()
        if stored is not None:
            dtype = stored.dtype.name.lower()
        packed = packed_type(weight)
        reason = _reason(node)
        layers.append(
            Layer(
                str(node.name),
                node.op_type,
                packed or (dtype if is_constant else ""),
                _macs(node, sizes),
                integer=not reason,
                reason=reason,
                weight_only=stored is not None and integer_type(node.inputs[0]) is None,
            )
        )
    return layers


def _recurrent_layer(node: ir.Node, sizes: Mapping[str, int]) -> Layer:
    """Return the entry of a recurrent layer, which has several weights."""
    reason, op = why_float(node), node.op_type.removeprefix("DynamicQuantize")
    dtype, macs = weight_type(node), _macs(node, sizes)
    return Layer(str(node.name), op, dtype, macs, integer=not reason, reason=reason)


def _reason(node: ir.Node) -> str:
    """Return why a runtime must compute a layer in floating point, or an empty string."""
    if node.op_type in INTEGER_KERNELS:
        return ""
    first, second = node.inputs[:2]
    source = producer(first, "DequantizeLinear")
    stored = read(second)
    if node.op_type == "MatMul" and source is None and stored is not None:
        return "" if stored.dtype in (*_FOUR_BITS, *_EIGHT_BITS) else "no kernel for 16-bit weights"
    if producer(second, "DequantizeLinear") is None:
        is_constant = array_of(second) is not None
        return "its weight is not quantized" if is_constant else "its second input is not quantized"
    if source is None:
        return "its input is not quantized"
    for value in (first, second):
        dtype = integer_type(value)
        if dtype not in _EIGHT_BITS:
            return f"no integer kernel for {'' if dtype is None else dtype.name.lower()}"
    if node.op_type not in _WITH_KERNELS:
        return f"no integer kernel for {node.op_type}"
    if stored is not None and stored.block_size is not None:
        return "no integer kernel for a scale per group with quantized inputs"
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if has_bias and producer(node.inputs[2], "DequantizeLinear") is None:
        return "its bias is not an int32 constant"
    if any(
        "_behind" in str(x.name) for use in node.outputs[0].uses() for x in use.node.inputs if x
    ):
        return "its bias is added in float"
    if node.op_type == "Conv" and not is_output_quantized(node):
        return "its output is not quantized"
    return ""


def integer_type(value: ir.Value | None) -> ir.DataType | None:
    """Return the integer type behind a dequantized value."""
    node = producer(value, "DequantizeLinear")
    return None if node is None or node.inputs[0] is None else node.inputs[0].dtype


def is_output_quantized(node: ir.Node) -> bool:
    """Whether a QuantizeLinear is the only reader of a layer's output."""
    reader = only_reader(node.outputs[0])
    while reader is not None and reader.op_type in _FUSED:
        reader = only_reader(reader.outputs[0])
    return reader is not None and reader.op_type == "QuantizeLinear"


def example_sizes(graph: ir.Graph, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the dynamic sizes of a graph for inputs of these shapes, but with one example.

    The first axis of the first input is the batch.
    """
    sizes: dict[str, int] = {}
    is_first = True
    for value in graph.inputs:
        dims = list(value.shape or ())
        for axis, (dim, size) in enumerate(
            zip(dims, shapes.get(str(value.name), ()), strict=False)
        ):
            if isinstance(dim, ir.SymbolicDim) and len(dim.free_symbols()) == 1:
                sizes.setdefault(str(dim.value), 1 if is_first and not axis else size)
        is_first = is_first and not dims
    return sizes


def _ones(graph: ir.Graph) -> dict[str, int]:
    """Return one for each dynamic size."""
    dims = (d for value in graph.inputs for d in (value.shape or ()))
    return {str(dim.value): 1 for dim in dims if isinstance(dim, ir.SymbolicDim)}


def shape_of(value: ir.Value | None, sizes: Mapping[str, int]) -> list[int] | None:
    """Return a shape with all dynamic sizes given, or None if it is unknown."""
    if value is None or value.shape is None:
        return None
    dims: list[Any] = [d if isinstance(d, int) else d.evaluate(sizes) for d in value.shape]
    return dims if all(isinstance(d, int) for d in dims) else None


def _macs(node: ir.Node, sizes: Mapping[str, int]) -> int | None:
    """Return the multiplications of a node, or None if a shape is unknown."""
    inputs, outputs = ([shape_of(x, sizes) for x in side] for side in (node.inputs, node.outputs))
    try:
        return count_macs(node.op_type, inputs, outputs, attributes_of(node))
    except UnknownShapeError:
        return None


def fill_macs(
    layers: list[Layer],
    graph: ir.Graph,
    execute: Callable[[list[str]], Mapping[str, Any]],
    rows: int,
) -> None:
    """Count multiplications where the graph does not contain the shapes.

    ``execute`` returns tensors of the file by name, and its inputs, for ``rows`` examples.
    """
    unknown = {layer.name: layer for layer in layers if layer.macs is None}
    nodes = [node for node in layers_of(graph) if node.name in unknown]
    values = {x for node in nodes for x in (*node.inputs, *node.outputs) if x is not None}
    names = [str(x.name) for x in values if not (x.is_initializer() or x.is_graph_input())]
    found = execute(names) if names else {}
    for node in nodes:
        inputs, outputs = (
            [None if x is None else _executed_shape(x, found) for x in side]
            for side in (node.inputs, node.outputs)
        )
        macs = count_macs(node.op_type, inputs, outputs, attributes_of(node))
        unknown[str(node.name)].macs = macs // max(rows, 1)


def _executed_shape(value: ir.Value, found: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a tensor as executed, or of a constant."""
    shape: Any = found[str(value.name)].shape if value.name in found else value.shape
    return tuple(shape)
