"""List the layers of a LiteRT file, and which of them run on integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lilliput.export.keras.litert.draft import Draft
from lilliput.export.keras.litert.fuse import why_float
from lilliput.export.keras.litert.weights import WEIGHTS, Found
from lilliput.frameworks.exporting.layer import Layer
from lilliput.graph.onnx_macs import count_macs as in_onnx

_LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "CONV_3D")
_PRODUCTS = ("BATCH_MATMUL",)
# The ONNX operator with the same multiplications, the position of its input, and the layout of its
# weight.
_IN_ONNX: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "CONV_2D": ("Conv", 0, (0, 3, 1, 2)),
    "DEPTHWISE_CONV_2D": ("Conv", 0, (3, 0, 1, 2)),
    "CONV_3D": ("Conv", 0, (4, 3, 0, 1, 2)),
    "TRANSPOSE_CONV": ("ConvTranspose", 2, (3, 0, 1, 2)),
    "FULLY_CONNECTED": ("Conv", 0, (0, 1)),
    "BATCH_MATMUL": ("MatMul", 0, ()),
}


def list_layers(draft: Draft, weights: Mapping[int, Found]) -> list[Layer]:
    """Return the layers in order of execution, with the reason for those in float."""
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
    """Return how many operators use integers and how many use floats, without conversions."""
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
    """Count MACs from the tensor shapes of a run, where the file has dynamic sizes."""
    operators = draft.of_kind(*_LAYERS, *_PRODUCTS)
    for layer, operator in zip(layers, operators, strict=True):
        layer.macs = count_macs(draft, operator, shapes) // rows


def count_macs(
    draft: Draft, operator: Any, shapes: Mapping[int, Sequence[int]] = MappingProxyType({})
) -> int:
    """Return the multiplications of an operator, with 1 for dynamic sizes."""
    kind = draft.kind(operator)
    op, source, order = _IN_ONNX[kind]
    indices = operator.inputs[source], operator.inputs[WEIGHTS[kind][0]]
    given, weight = (shapes.get(x, draft.shape(x)) for x in indices)
    output = shapes.get(operator.outputs[0], draft.shape(operator.outputs[0]))
    turned = {"transA": kind == "BATCH_MATMUL" and operator.builtinOptions.adjX}
    return in_onnx(op, [given, [weight[i] for i in order] or weight], [output], turned)
