"""Costs of a model with some of its channels removed, counted from labels without building it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from types import SimpleNamespace
from typing import Any

from lilliput.graph.analysis import Analysis, Kept
from lilliput.graph.labels import Flags
from lilliput.graph.macs import attention_macs, einsum_macs, recurrent_macs
from lilliput.graph.walk import Value

Formula = Callable[[Kept, SimpleNamespace, Any], int]  # arguments of an op, and its result


def count_parameters(analysis: Analysis, removed: Flags) -> int:
    """Return the number of trained parameters, including those that the graph never reads."""
    kept = Kept(analysis, removed)
    whole = analysis.graph.trained.items()
    return sum(prod(kept.parameter(x)) if x in analysis.axes else n for x, n in whole)


def count_macs(analysis: Analysis, removed: Flags) -> int:
    """Return the multiply-accumulates of convolutions, linear layers, products and recurrences."""
    return sum(macs_by_op(analysis, removed).values())


def macs_by_op(
    analysis: Analysis, removed: Flags, numbers: Collection[int] | None = None
) -> dict[int, int]:
    """Return the multiply-accumulates of each op by its number, for all ops or some of them."""
    kept, walk, found = Kept(analysis, removed), analysis.walk, {}
    for op in analysis.graph.ops:
        formula = MACS.get(op.name) if numbers is None or op.number in numbers else None
        result = None if formula is None else walk.result(op)
        if formula is not None and result is not None:
            found[op.number] = formula(kept, walk.bind(op), result)
    return found


def _conv(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return _filters(kept, a.weight, result)


def _conv_transpose(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return _filters(kept, a.weight, a.input)


def _filters(kept: Kept, weight: Value, made: Value) -> int:
    """Count a kernel at each position, given the tensor whose channels are its first dimension."""
    origin = weight.origin[0] if weight.is_parameter else None
    size = kept.numel(weight) if origin is None else prod(kept.parameter(origin[0]))
    first = kept.size(weight, 0)
    return kept.numel(made) // max(first, 1) * size if first else 0


def _conv_depthwise(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return kept.numel(result) * int(prod(a.weight.shape[2:]))


def _linear(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return kept.numel(result) * kept.size(a.input, -1)


def _addmm(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return kept.numel(result) * kept.size(a.mat1, -1)


def _attention(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    size = kept.size(result, -1)
    queries = kept.numel(result) // max(size, 1)
    return attention_macs(queries, kept.size(a.key, -2), kept.size(a.query, -1), size)


def _einsum(kept: Kept, a: SimpleNamespace, result: Value) -> int:
    return einsum_macs(a.equation, [kept.shape(x) for x in a.tensors])


def _recurrent(kept: Kept, a: SimpleNamespace, result: Any) -> int:
    return recurrent_macs(prod(a.input.shape[:-1]), [kept.numel(x) for x in a.matrices])


# The only formulas for the multiplications of ops in a graph.
MACS: dict[str, Formula] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_depthwise": _conv_depthwise,
    "linear": _linear,
    "matmul": _linear,
    "addmm": _addmm,
    "attention": _attention,
    "einsum": _einsum,
    "recurrent": _recurrent,
    "recurrent_cell": _recurrent,
}
