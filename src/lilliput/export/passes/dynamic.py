"""For ONNX Runtime: products of integers with a scale that is computed in each call.

``DynamicQuantizeLinear → DequantizeLinear → MatMul`` becomes ``DynamicQuantizeLinear → MatMulInteger``,
followed by the product of both scales and the bias, which the runtime fuses into one kernel
(``DynamicQuantizeMatMul``, or ``MatMulIntegerToFloat`` if several layers read the same integers).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, attributes_of, integer_attribute, producer
from lilliput.export.passes.integers import Stored, cast, name_of, read

DYNAMIC = "DynamicQuantizeLinear"
_UINT8 = ir.DataType.UINT8
_EIGHT_BITS = (ir.DataType.INT8, _UINT8)
_SHAPERS = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def multiply_integers(draft: Draft) -> None:
    """Multiply the integers of dynamically quantized inputs by those of weights."""
    _move_integers(draft)
    for node in [node for node in draft.graph if node.op_type in ("MatMul", "Gemm")]:
        quantize, weight = _quantizer(node.inputs[0]), _columns(node)
        if quantize is not None and weight is not None:
            _multiply(draft, node, quantize, weight)
    _keep_integers(draft)
    draft.sweep()


def _quantizer(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes the scale of a tensor in each call, or None."""
    source = producer(value, "DequantizeLinear")
    node = None if source is None or source.inputs[0] is None else source.inputs[0].producer()
    while node is not None and node.op_type in _SHAPERS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == DYNAMIC else None


def _move_integers(draft: Draft) -> None:
    """Transpose and reshape integers, not the values they represent, as attention does with its inputs."""
    for node in [node for node in draft.graph if node.op_type in _SHAPERS]:
        source, output = producer(node.inputs[0], "DequantizeLinear"), node.outputs[0]
        if source is None or _quantizer(node.inputs[0]) is None:
            continue
        integers, *grid = source.inputs
        inputs = [integers, *node.inputs[1:]]
        kept = attributes_of(node)
        moved = draft.insert(node, node.op_type, inputs, kept, like=output, dtype=_UINT8)
        back = draft.insert(node, "DequantizeLinear", [moved, *grid], like=output)
        draft.replace(output, back)
        draft.graph.remove(node, safe=True)


def _columns(node: ir.Node) -> Stored | None:
    """Return the weight of a layer in the form of the kernel, with one scale or one per column."""
    stored = read(node.inputs[1])
    if stored is None or stored.integers.ndim != 2 or integer_attribute(node, "transA", 0):
        return None
    if integer_attribute(node, "transB", 0):
        stored = stored.transposed((1, 0))
    is_known = stored.block_size is None and stored.axis in (None, 1)
    return stored if is_known and stored.dtype in _EIGHT_BITS else None


def _multiply(draft: Draft, node: ir.Node, quantize: ir.Node, weight: Stored) -> None:
    """Replace a layer and the addition of its bias by a product of integers."""
    output, held = node.outputs[0], node.inputs[1]
    stem = "weight" if held is None else name_of(held)
    _, scale, zero = quantize.outputs
    factors = [
        node.inputs[0].producer().inputs[0],  # type: ignore[union-attr]
        draft.constant(cast(weight.integers, weight.dtype), f"{stem}_columns"),
        zero,
    ]
    if np.any(weight.zero_point):
        zeros = cast(weight.zero_point, weight.dtype)
        factors.append(draft.constant(zeros, f"{stem}_columns_zero_point"))
    product = draft.insert(node, "MatMulInteger", factors, like=output, dtype=ir.DataType.INT32)
    product.producer().name = node.name  # type: ignore[union-attr]
    real = draft.insert(node, "Cast", [product], {"to": ir.DataType.FLOAT.value}, like=output)
    steps = draft.constant(weight.scale, f"{stem}_columns_scale")
    step = draft.insert(node, "Mul", [scale, steps], like=scale)
    step.shape = ir.Shape(weight.scale.shape)
    result = draft.insert(node, "Mul", [real, step], like=output)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        result = draft.insert(node, "Add", [result, bias], like=output)
    draft.replace(output, result)
    draft.graph.remove(node, safe=True)


def _keep_integers(draft: Draft) -> None:
    """Compare the integers themselves if nothing reads the values they represent any more."""
    for key, value in draft.tensors.items():
        source = producer(value, "DequantizeLinear")
        quantize = None if source is None else producer(source.inputs[0], DYNAMIC)
        if quantize is not None and not value.uses() and not value.is_graph_output():
            draft.tensors[key] = quantize.outputs[0]
