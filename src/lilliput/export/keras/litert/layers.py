"""What the layers of a LiteRT file are, and which of them work on integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from lilliput.export.keras.litert.draft import Draft
from lilliput.export.keras.litert.fuse import why_float
from lilliput.export.keras.litert.weights import WEIGHTS, Found
from lilliput.export.layer import Layer

_LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "CONV_3D")
_PRODUCTS = ("BATCH_MATMUL",)


def list_layers(draft: Draft, weights: Mapping[int, Found]) -> list[Layer]:
    """Return the layers in order of execution, with what speaks against integers."""
    layers, taken = [], Counter[str]()
    for operator in draft.of_kind(*_LAYERS, *_PRODUCTS):
        kind = draft.kind(operator)
        found = weights.get(id(operator))
        plain = found.name if found is not None else draft.name(operator.outputs[0])
        name = plain if not taken[plain] else f"{plain}_{taken[plain]}"
        taken[plain] += 1
        index = operator.inputs[WEIGHTS[kind][0]]
        is_integer = draft.dtype(operator.outputs[0]) == "int8"
        dtype = _weight_type(draft, index)
        layers.append(
            Layer(
                name,
                kind,
                dtype,
                count_macs(draft, operator),
                integer=is_integer,
                kernel=f"{kind} {'int8' if is_integer else 'float32'}",
                reason=why_float(draft, operator, weights),
                weight_only=dtype == "int8" and not is_integer,
            )
        )
    return layers


def count_operators(draft: Draft) -> tuple[int, int]:
    """Return how many operators work on integers and how many on floats, without conversions."""
    kinds = [
        draft.dtype(x.outputs[0])
        for x in draft.operators
        if x.outputs and draft.kind(x) not in ("QUANTIZE", "DEQUANTIZE")
    ]
    return kinds.count("int8"), kinds.count("float32")


def _weight_type(draft: Draft, index: int) -> str:
    maker = draft.maker(index)
    if maker is not None and draft.kind(maker) == "DEQUANTIZE":
        index = maker.inputs[0]
    return "" if draft.constant(index) is None else draft.dtype(index)


def fill_costs(
    layers: list[Layer], draft: Draft, shapes: Mapping[int, Sequence[int]], rows: int
) -> None:
    """Count multiplications by the shapes that tensors had in a run, where the file leaves them open."""
    operators = draft.of_kind(*_LAYERS, *_PRODUCTS)
    for layer, operator in zip(layers, operators, strict=True):
        layer.macs = count_macs(draft, operator, shapes) // rows


def count_macs(
    draft: Draft, operator: Any, shapes: Mapping[int, Sequence[int]] = MappingProxyType({})
) -> int:
    """Return the multiplications of an operator; sizes that are open count as one."""

    def shape_of(index: int) -> Sequence[int]:
        return shapes.get(index, draft.shape(index))

    kind = draft.kind(operator)
    weight = shape_of(operator.inputs[WEIGHTS[kind][0]])
    output = shape_of(operator.outputs[0])
    if kind == "TRANSPOSE_CONV":
        return prod(shape_of(operator.inputs[2])) * prod(weight[:3])
    if kind == "DEPTHWISE_CONV_2D":
        return prod(output) * prod(weight[1:3])
    if kind == "CONV_3D":
        return prod(output) * prod(weight[:4])
    if kind == "BATCH_MATMUL":
        first = shape_of(operator.inputs[0])
        return prod(output) * first[-2 if operator.builtinOptions.adjX else -1]
    return prod(output) * prod(weight[1:])
