"""What the layers of a file are: their names, types and costs, and why one cannot run on integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from lilliput.export.graph import array_of, layers_of, only_reader, producer
from lilliput.export.integers import read
from lilliput.export.layer import Layer, count_macs

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
# They lie between a layer and the quantizer of its output, and runtimes fuse them into the layer.
_FUSED = frozenset({"Relu", "Clip"})


def list_layers(graph: ir.Graph) -> list[Layer]:
    """Return the layers in order of execution, with what speaks against integers."""
    sizes = _sizes(graph)
    layers = []
    for node in layers_of(graph):
        weight = node.inputs[1]
        stored = read(weight)
        is_constant = stored is not None or array_of(weight) is not None
        dtype = "" if weight is None or weight.dtype is None else weight.dtype.name.lower()
        if stored is not None:
            dtype = stored.dtype.name.lower()
        reason = _reason(node)
        layers.append(
            Layer(
                str(node.name),
                node.op_type,
                dtype if is_constant else "",
                _macs(node, sizes),
                integer=not reason,
                reason=reason,
                weight_only=stored is not None and integer_type(node.inputs[0]) is None,
            )
        )
    return layers


def _reason(node: ir.Node) -> str:
    """Return why a runtime must compute a layer in floating point, empty if it need not."""
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
    if node.op_type == "ConvTranspose":
        return "no integer kernel for ConvTranspose"
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
    """Whether a layer's output goes to a QuantizeLinear and nowhere else."""
    reader = only_reader(node.outputs[0])
    while reader is not None and reader.op_type in _FUSED:
        reader = only_reader(reader.outputs[0])
    return reader is not None and reader.op_type == "QuantizeLinear"


def _sizes(graph: ir.Graph) -> dict[str, int]:
    """Return one for each open size, so that costs are those of one example."""
    dims: Iterator[Any] = (d for value in graph.inputs for d in (value.shape or ()))
    return {str(dim.value): 1 for dim in dims if isinstance(dim, ir.SymbolicDim)}


def _shape(value: ir.Value | None, sizes: dict[str, int]) -> list[int] | None:
    if value is None or value.shape is None:
        return None
    dims = [d if isinstance(d, int) else d.evaluate(sizes) for d in value.shape]
    known = [d for d in dims if isinstance(d, int)]
    return known if len(known) == len(dims) else None


def _macs(node: ir.Node, sizes: dict[str, int]) -> int | None:
    shapes = [_shape(x, sizes) for x in (node.inputs[0], node.inputs[1], node.outputs[0])]
    known = [shape for shape in shapes if shape is not None]
    return count_macs(node.op_type, *known) if len(known) == len(shapes) else None
