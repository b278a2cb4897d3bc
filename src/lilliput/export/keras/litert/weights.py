"""Match the weights of a file to layers, and find the integers to store.

The converter folds batch norms into weights, and changes their layout. So a constant ``w`` of the file is
recognized by its content: ``w = factor * weight``, with one factor for each output channel. With
``weight = scale * integers`` the file gets the same integers, with the scale ``factor * scale``; if
a factor is negative, signs are flipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.export.keras.litert.draft import Draft, Scales
from lilliput.frameworks import backend_of
from lilliput.frameworks.exporting.grid import on_grid
from lilliput.frameworks.exporting.simulation import Array, Placement, Simulation, to_array

# The position of an operator's weight, and its axis of output channels, or of rows of a table.
WEIGHTS = {
    "CONV_2D": (1, 0),
    "DEPTHWISE_CONV_2D": (1, 3),
    "FULLY_CONNECTED": (1, 0),
    "TRANSPOSE_CONV": (1, 0),
    "CONV_3D": (1, 4),
    "BATCH_MATMUL": (1, -1),
    "GATHER": (0, 0),
    "EMBEDDING_LOOKUP": (1, 0),
}
_CLOSE = 1e-5


@dataclass(frozen=True, eq=False)
class Known:
    """A weight of the model: as its layer uses it, and its integers if it has a grid."""

    name: str
    weight: Array
    placement: Placement | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """The weight of an operator: its layer, and its integers, or why it has none."""

    name: str
    integers: Array | None = None
    scales: Scales | None = None
    reason: str = "its weight is not quantized"


def known_weights(model: Any, simulation: Simulation) -> list[Known]:
    """Return every weight of a model with two axes or more: those of quantizers, then the others."""
    placements = [placement for placement in simulation.placements if placement.is_weight]
    found = [
        Known(placement.wrapper.name, placement.weight(), placement) for placement in placements
    ]
    taken = {id(placement.wrapper.module) for placement in placements}
    try:
        layers = backend_of(model).layers(model)
    except UnsupportedModelError:  # a layer that is never called is not built
        return found
    for layer in layers:
        if layer.weight_name is not None and len(layer.shape) > 1 and id(layer.module) not in taken:
            weight = to_array(getattr(layer.module, layer.weight_name))
            found.append(Known(layer.name, weight))
    return found


def find_weights(draft: Draft, known: Sequence[Known]) -> dict[int, Found]:
    """Return the known weights of all operators, by the identity of the operator."""
    found: dict[int, Found] = {}
    used: set[int] = set()
    for operator in draft.of_kind(*WEIGHTS):
        position, axis = WEIGHTS[draft.kind(operator)]
        constant = draft.constant(operator.inputs[position])
        if constant is None or constant.dtype != np.float32 or constant.ndim < 2:
            continue
        match = _match(draft.kind(operator), constant, axis % constant.ndim, known, used)
        if match is not None:
            number, result = match
            used.add(number)
            found[id(operator)] = result
    return found


def _match(
    kind: str, constant: Array, axis: int, known: Sequence[Known], used: set[int]
) -> tuple[int, Found] | None:
    """Return which of the known weights a constant is, trying unused ones first."""
    order = sorted(range(len(known)), key=lambda number: number in used)
    rows = np.moveaxis(constant, axis, 0).reshape(constant.shape[axis], -1)
    for is_folded in (False, True):  # first without a batch norm
        for number in order:
            for layout in _layouts(kind, known[number].weight.shape, constant.shape):
                weight = np.moveaxis(layout(known[number].weight), axis, 0).reshape(rows.shape)
                factor = _factors(rows, weight, is_folded)
                if factor is not None:
                    return number, _found(known[number], layout, factor, axis)
    return None


def _layouts(kind: str, shape: Sequence[int], wanted: Sequence[int]) -> Iterator[Any]:
    """Yield how a Keras array may be converted to the shape that an operator expects."""
    if prod(shape) != prod(wanted):
        return
    if kind in ("DEPTHWISE_CONV_2D", "CONV_3D", "GATHER", "EMBEDDING_LOOKUP", "BATCH_MATMUL"):
        yield lambda array: array.reshape(wanted)
    if kind == "TRANSPOSE_CONV" and shape[-2] == wanted[0]:
        yield lambda array: np.moveaxis(array, -2, 0).reshape(wanted)
    if kind in ("CONV_2D", "FULLY_CONNECTED"):
        for cut in range(1, len(shape)):
            if prod(shape[cut:]) == wanted[0]:
                yield lambda array: array.reshape(-1, wanted[0]).T.reshape(wanted)
                return


def _factors(rows: Array, weight: Array, is_folded: bool) -> Array | None:
    """Return the factor per channel between a constant and a weight, or None if they differ otherwise."""
    if not is_folded:
        is_same = np.allclose(rows, weight, rtol=_CLOSE, atol=0)
        return np.ones(len(rows)) if is_same else None
    largest = np.abs(weight).argmax(axis=1)
    index = np.arange(len(rows))
    tops = weight[index, largest].astype(np.float64)
    factor = rows[index, largest] / np.where(tops == 0, 1.0, tops)
    error = np.abs(rows - factor[:, None] * weight).max(axis=1, initial=0.0)
    limit = _CLOSE * np.abs(rows).max(axis=1, initial=0.0)
    return factor if (error <= limit).all() else None


def _found(known: Known, layout: Any, factor: Array, axis: int) -> Found:
    if known.placement is None or known.placement.qparams is None:
        reason = "its weight is not quantized"
        if known.placement is not None:
            reason = "the algorithm gives its weight no integer grid"
        return Found(known.name, reason=reason)
    stored = on_grid(known.placement)
    grid = known.placement.qparams.grid
    if grid.group_size is not None:
        return Found(known.name, reason="LiteRT has no scales for groups of weights")
    if np.any(stored.zero_point):
        return Found(known.name, reason="LiteRT only accepts weights without a zero point")
    if grid.bits > 8:
        return Found(known.name, reason=f"its weight has {grid.bits} bits, LiteRT multiplies 8")
    if np.abs(stored.integers).max(initial=0) > 127:
        return Found(known.name, reason="its weight contains the integer -128; set narrow_range")
    scale = np.broadcast_to(stored.spread(stored.scale), stored.integers.shape)
    integers, scale = (np.moveaxis(layout(x), axis, 0) for x in (stored.integers, scale))
    rows = scale.reshape(len(scale), -1)
    if not (rows == rows[:, :1]).all():
        return Found(known.name, reason="its scales are not those of output channels")
    shape = (-1, *([1] * (integers.ndim - 1)))
    signed = integers * np.sign(factor).astype(np.int32).reshape(shape)
    size = np.where(factor == 0, 1.0, np.abs(factor)) * rows[:, 0].astype(np.float64)
    is_empty = (signed.reshape(len(signed), -1) == 0).all(axis=1)
    if is_empty.any() and not is_empty.all():  # zeros have any scale: use the others'
        size = np.where(is_empty, size[~is_empty].max(), size)
    scales = Scales(size.astype(np.float32), np.zeros(len(size), np.int64), axis)
    return Found(known.name, np.moveaxis(signed, 0, axis).astype(np.int8), scales, "")
