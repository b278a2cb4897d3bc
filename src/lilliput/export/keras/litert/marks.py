"""First pass: the quantized activations, as int8 with exactly the scales of the simulation.

In the traced function, a no-op of TensorFlow marks each quantized activation, with the number of the
mark in it. The converter does not know it, and keeps it in place, as an operator of an unknown
kind. (It does know TensorFlow's own operator for fake quantization, but then moves it, quantizes layers
that should stay in float, or gives softmax its own grid.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.errors import ExportError
from lilliput.export.keras.litert.draft import Draft, Scales
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.simulation import (
    Array,
    Mark,
    Placement,
    Simulation,
    Tensor,
    as_simulated,
    to_array,
)

_NAME = re.compile(rb"lilliput_(\d+)_mark")


@dataclass(frozen=True, eq=False)
class Fitted:
    """The grid of an activation as int8: its scales, and the range of its integers."""

    scales: Scales
    low: int
    high: int


def fit_int8(placement: Placement) -> Fitted | None:
    """Return an activation's grid as int8, or None if that is impossible.

    An unsigned grid is the same one shifted by 128.
    """
    if placement.qparams is None:
        return None
    grid = placement.qparams.grid
    if grid.bits > 8 or grid.axis is not None:
        return None
    shift = 0 if grid.is_signed else 128
    scale = to_array(placement.qparams.scale).astype(np.float32).reshape(-1)
    zero = to_array(placement.qparams.zero_point).astype(np.int64).reshape(-1) - shift
    if scale.size != 1 or not -128 <= zero[0] <= 127:
        return None
    return Fitted(Scales(scale, zero), grid.low - shift, grid.high - shift)


def put_mark(tensor: Tensor, placement: Placement, number: int) -> Tensor:
    """Return an activation passed through an operator with the number of the mark."""
    if fit_int8(placement) is None:
        return _as_simulated(tensor, placement)
    return part_of("keras", "export.trace").put_debug_identity(tensor, f"lilliput_{number}_mark")


def _as_simulated(tensor: Tensor, placement: Placement) -> Tensor:
    """Return an activation quantized by the algorithm itself, in floating point."""
    if placement.qparams is not None and placement.qparams.is_result:
        return tensor  # already quantized
    return as_simulated(placement.wrapper, placement.quant_type, (tensor,))[0]


def replace_marks(draft: Draft, marks: Sequence[Mark], simulation: Simulation) -> None:
    """Insert a QUANTIZE to int8 and a DEQUANTIZE at each mark."""
    for operator in draft.of_kind("CUSTOM"):
        found = _number(operator)
        if found is None:
            continue
        mark = marks[int(found[1])]
        fitted = fit_int8(simulation.placements[mark.placement])
        if fitted is None:
            raise ExportError(
                f"{simulation.placements[mark.placement].name}: it does not fit into int8."
            )
        name = f"{simulation.placements[mark.placement].name}_{int(found[1])}"
        output = operator.outputs[0]
        integers = draft.add_tensor(name, output, "int8", fitted.scales)
        quantize = draft.make("QUANTIZE", operator.inputs, [integers])
        dequantize = draft.make("DEQUANTIZE", [integers], [output])
        draft.insert_before(operator, quantize)
        draft.insert_before(operator, dequantize)
        draft.remove(operator)
        draft.tensors[mark.placement, mark.position, mark.call] = integers
        _cut(draft, quantize, fitted)
    _refuse_unknown(draft, marks, simulation)


def _number(operator: Any) -> re.Match[bytes] | None:
    options = operator.customOptions
    return None if options is None else _NAME.search(bytes(options))


def _refuse_unknown(draft: Draft, marks: Sequence[Mark], simulation: Simulation) -> None:
    """Raise for operators that LiteRT does not have, and for marks in the bodies of loops."""
    for graph in draft.model.subgraphs:
        for operator in graph.operators:
            code = draft.model.operatorCodes[operator.opcodeIndex].customCode
            if not code:
                continue
            found = _number(operator)
            if found is not None:
                placement = simulation.placements[marks[int(found[1])].placement]
                raise ExportError(
                    f"{placement.name} is quantized inside a loop, which cannot be exported; quantize the "
                    "weights of recurrent layers only, or unroll them."
                )
            raise ExportError(
                f"LiteRT has no operator {code.decode()!r}, which the model uses; replace it."
            )


def _cut(draft: Draft, operator: Any, fitted: Fitted) -> None:
    """Clip the integers to a grid that is narrower than int8."""
    last, behind = operator.outputs[0], operator
    for kind, end, is_needed in (
        ("MAXIMUM", fitted.low, fitted.low > -128),
        ("MINIMUM", fitted.high, fitted.high < 127),
    ):
        if is_needed:
            name = f"{draft.name(operator.outputs[0])}_{kind.lower()}"
            limit: Array = np.asarray([end], np.int8)
            ends = draft.add_tensor(f"{name}_end", last, "int8", fitted.scales, limit)
            cut = draft.add_tensor(name, last, "int8", fitted.scales)
            draft.replace(last, cut)
            new = draft.make(kind, [last, ends], [cut])
            draft.insert_after(behind, new)
            last, behind = cut, new
