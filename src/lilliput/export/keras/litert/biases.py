"""Move biases back into their layers; the converter separates them if sizes are dynamic."""

from __future__ import annotations

from typing import Any

import numpy as np

from lilliput.export.keras.litert.draft import Draft
from lilliput.frameworks.exporting.simulation import Array

_LAYERS = {"CONV_2D": 2, "FULLY_CONNECTED": 2}  # and the position of their bias
_BETWEEN = ("RESHAPE", "BATCH_TO_SPACE_ND")


def pull_biases(draft: Draft) -> None:
    """Turn a layer, a change of shape and an addition into a layer with a bias, and the change of shape."""
    for addition in draft.of_kind("ADD"):
        constants = [draft.constant(index) for index in addition.inputs]
        for position in (0, 1):
            bias = constants[1 - position]
            if bias is not None and constants[position] is None:
                _pull(draft, addition, addition.inputs[position], bias)
                break


def _pull(draft: Draft, addition: Any, index: int, bias: Array) -> None:
    between = _only_maker(draft, index, _BETWEEN)
    layer = None if between is None else _only_maker(draft, between.inputs[0], tuple(_LAYERS))
    if between is None or layer is None:
        return
    count = draft.shape(layer.inputs[1])[0]
    if bias.size != count or bias.dtype != np.float32 or not _keeps(draft, layer, index, bias):
        return
    position = _LAYERS[draft.kind(layer)]
    held = layer.inputs[position] if len(layer.inputs) > position else -1
    before = draft.constant(held)
    if (held >= 0 and (before is None or before.any())) or _activation(layer):
        return
    name = f"{draft.name(layer.outputs[0])}_bias"
    added = draft.add_tensor(name, layer.inputs[1], "float32", data=bias.reshape(-1))
    layer.inputs = [*layer.inputs[:position], added]
    layer.builtinOptions.fusedActivationFunction = _activation(addition)
    draft.replace(addition.outputs[0], index)
    draft.remove(addition)


def _keeps(draft: Draft, layer: Any, index: int, bias: Array) -> bool:
    """Whether each entry of a bias still belongs to one output channel after the change of shape."""
    shape = bias.shape[next((i for i, size in enumerate(bias.shape) if size != 1), bias.ndim - 1) :]
    last = draft.shape(layer.outputs[0])[-1:]
    return last == (bias.size,) and draft.shape(index)[-len(shape) :] == shape


def _only_maker(draft: Draft, index: int, kinds: tuple[str, ...]) -> Any:
    """Return the producer of a tensor with a single reader, if the producer is of some kind."""
    maker = draft.maker(index)
    is_alone = len(draft.readers(index)) == 1 and index not in draft.graph.outputs
    return maker if maker is not None and is_alone and draft.kind(maker) in kinds else None


def _activation(operator: Any) -> int:
    return int(getattr(operator.builtinOptions, "fusedActivationFunction", 0))
