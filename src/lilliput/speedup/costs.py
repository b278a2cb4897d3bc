"""What a model costs with some of its channels removed: counted from labels, without building it."""

from __future__ import annotations

from math import prod
from typing import Any

from lilliput.ops.macs import recurrent_macs
from lilliput.speedup.analysis import Analysis, Kept
from lilliput.speedup.labels import Flags
from lilliput.speedup.rules.recurrent import CELLS, LAYERS
from lilliput.speedup.walk import Value, op_name

_MATMULS = ("matmul", "mm", "bmm", "addmm", "baddbmm")


class _Sizes(Kept):
    """Numbers of elements of values once channels are removed."""

    def numel(self, value: Value) -> int:
        return prod(self.shape(value))

    def parameter(self, name: str) -> int:
        sizes = self.shape(self.analysis.axes[name])
        if name in self.analysis.walk.ragged:
            rows = self.analysis.walk.ragged[name]
            gone = self.removed[self.analysis.walk.labels.find(rows.ravel())]
            sizes[1] = round(float((~gone).sum()) / len(rows))
        return prod(sizes)


def count_parameters(analysis: Analysis, removed: Flags) -> int:
    """Return the number of parameters, those that the graph never reads included."""
    sizes, captured = _Sizes(analysis, removed), analysis.captured
    whole = captured.parameters.items()
    return sum(sizes.parameter(x) if x in analysis.axes else n for x, n in whole)


def count_macs(analysis: Analysis, removed: Flags) -> int:
    """Return the multiply-accumulates of convolutions, linear layers, products and recurrences."""
    sizes, total = _Sizes(analysis, removed), 0
    for node, value in analysis.walk.values.items():
        if node.op == "call_function" and value is not None:
            total += _node_macs(sizes, op_name(node), analysis, node, value)
    return total


def _node_macs(sizes: _Sizes, name: str, analysis: Analysis, node: Any, value: Any) -> int:
    if name.startswith("conv"):
        a = analysis.walk.bind(node)
        weight = a.weight
        per_filter = (
            sizes.parameter(weight.origin[0][0]) if weight.is_parameter else sizes.numel(weight)
        )
        made = a.input if name.startswith("conv_transpose") else value
        first = sizes.size(weight, 0)
        return sizes.numel(made) // max(first, 1) * per_filter if first else 0
    if name == "linear":
        a = analysis.walk.bind(node)
        return sizes.numel(value) * sizes.size(a.input, len(a.input.shape) - 1)
    if name in _MATMULS:
        a = analysis.walk.bind(node)
        x = a.input if name in ("matmul", "mm", "bmm") else getattr(a, "mat1", None) or a.batch1
        return sizes.numel(value) * sizes.size(x, len(x.shape) - 1)
    if name == "scaled_dot_product_attention":
        a = analysis.walk.bind(node)
        keys = sizes.size(a.key, len(a.key.shape) - 2)
        rows = sizes.numel(value) // max(sizes.size(value, len(value.shape) - 1), 1)
        inner = sizes.size(a.query, len(a.query.shape) - 1)
        return keys * (rows * inner + sizes.numel(value))
    if name in (*LAYERS, *CELLS):
        a = analysis.walk.bind(node)
        given = a.input if hasattr(a, "input") else a.data  # of packed sequences
        weights = [a.w_ih, a.w_hh] if name in CELLS else a.params
        matrices = [sizes.numel(x) for x in weights if len(x.shape) == 2]
        return recurrent_macs(prod(given.shape[:-1]), matrices)
    return 0
