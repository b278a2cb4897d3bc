"""Multiplications of ONNX operators: one table for all costs of files.

Operators in the table count as layers: they are listed with their kernel, and count in ``integer_share``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from lilliput.graph.macs import attention_macs, einsum_macs, recurrent_macs

Shape = Sequence[int]
Shapes = Sequence[Shape | None]
# Takes the shapes of all inputs and outputs (None for omitted ones), and the attributes by name.
Formula = Callable[[Shapes, Shapes, Mapping[str, Any]], int]


class UnknownShapeError(Exception):
    """A formula needs the shape of a tensor that is unknown."""


def count_macs(
    op: str, inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any] | None = None
) -> int:
    """Return the multiplications of a node; an operator without a formula has none.

    Examples
    --------
    >>> count_macs("Conv", [(1, 3, 8, 8), (16, 3, 3, 3)], [(1, 16, 6, 6)])
    15552
    >>> count_macs("Einsum", [(2, 4, 8), (8, 3)], [(2, 4, 3)], {"equation": "bik,kj->bij"})
    192
    """
    formula = MACS.get(op)
    return 0 if formula is None else formula(inputs, outputs, attributes or {})


def _of(shapes: Shapes, position: int) -> Shape:
    """Return a shape that the formula requires."""
    shape = shapes[position]
    if shape is None:
        raise UnknownShapeError(f"position {position}")
    return shape


def _conv(weight: int) -> Formula:
    """Return the formula of a convolution, given the position of its weight among the inputs."""
    return lambda inputs, outputs, _: prod(_of(outputs, 0)) * prod(_of(inputs, weight)[1:])


def _conv_transpose(inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any]) -> int:
    return prod(_of(inputs, 0)) * prod(_of(inputs, 1)[1:])


def _product(inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any]) -> int:
    """Count a matrix product."""
    is_turned = bool(attributes.get("transA", 0))
    return prod(_of(outputs, 0)) * _of(inputs, 0)[-2 if is_turned else -1]


def _attention(inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any]) -> int:
    """Count queries times keys, and the result times values: (batch, heads, length, size)."""
    query, key, value = (_of(inputs, i) for i in range(3))
    heads = 1 if len(query) > 3 else int(attributes["q_num_heads"])
    groups = 1 if len(query) > 3 else int(attributes["kv_num_heads"])
    past = inputs[4][-2] if len(inputs) > 4 and inputs[4] is not None else 0
    sizes = query[-1] // heads, value[-1] // groups
    return attention_macs(prod(query[:-1]) * heads, key[-2] + past, *sizes)


def _einsum(inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any]) -> int:
    given = [_of(inputs, i) for i in range(len(inputs))]
    return einsum_macs(str(attributes["equation"]), given)


def _recurrent(inputs: Shapes, outputs: Shapes, attributes: Mapping[str, Any]) -> int:
    """Count both matrices at every step: the input is (steps, examples, size)."""
    given, *weights = (_of(inputs, i) for i in range(3))
    return recurrent_macs(prod(given[:-1]), map(prod, weights))


MACS: dict[str, Formula] = {
    "Conv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "Gemm": _product,
    "QGemm": _product,
    "MatMul": _product,
    "MatMulInteger": _product,
    "QLinearMatMul": _product,
    "MatMulIntegerToFloat": _product,
    "DynamicQuantizeMatMul": _product,
    "MatMulNBits": _product,
    "Einsum": _einsum,
    "Attention": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "DynamicQuantizeLSTM": _recurrent,
}
