"""Fifth pass: adapt the graph to each runtime, and collect notes for the user."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.errors import ExportError, nearest
from lilliput.export.layers import integer_type
from lilliput.export.notes import note_defaults, notes_on
from lilliput.export.passes.dynamic import multiply_integers
from lilliput.export.passes.flatten import flatten_linears
from lilliput.export.passes.four_bits import pack_groups
from lilliput.export.passes.graph import (
    Draft,
    array_of,
    bounds_of,
    integer_attribute,
    layers_of,
    producer,
)
from lilliput.export.passes.integers import name_of, read
from lilliput.export.passes.lookups import gather_integers, whole_tables
from lilliput.export.passes.means import split_means
from lilliput.export.passes.recurrent import order_gates, unpack_recurrent, write_integer_lstms
from lilliput.frameworks.exporting.layer import Layer

_SIGNED = (ir.DataType.INT8, ir.DataType.INT16)
_FOUR_BITS = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}


def check_target(target: Any) -> str:
    """Return the name of a target, or raise."""
    if target not in TARGETS:
        names = ", ".join(repr(name) for name in TARGETS)
        raise ExportError(
            f"target: received {target!r}, expected one of {names}.{nearest(target, TARGETS)}"
        )
    return str(target)


def prepare_target(draft: Draft, target: str) -> None:
    """Rewrite layers to the form for which a runtime has integer kernels, before biases are integers."""
    for step in TARGETS[target].before:
        step(draft)
    draft.sweep()


def fit_target(draft: Draft, target: str) -> None:
    """Rewrite operators that a runtime would otherwise compute in floating point."""
    for step in TARGETS[target].after:
        step(draft)
    draft.sweep()


def clip_integers(draft: Draft) -> None:
    """Clip after QuantizeLinear instead of before, so that it can be fused with the preceding layer.

    Rounding is monotonic, so the integers of clipped numbers are the clipped integers. The bound of a
    ReLU6 is often beyond the last integer: then no clip is needed.
    """
    for node in [node for node in draft.graph if node.op_type == "QuantizeLinear"]:
        source, bounds = node.inputs[0], (-math.inf, math.inf)
        while (clip := producer(source, "Clip")) is not None and (ends := bounds_of(clip)):
            bounds = max(bounds[0], ends[0]), min(bounds[1], ends[1])
            source = clip.inputs[0]
        if source is not node.inputs[0] and source is not None:
            _cut_behind(draft, node, source, bounds)


def _cut_behind(draft: Draft, node: ir.Node, source: ir.Value, bounds: tuple[float, float]) -> None:
    output, dtype = node.outputs[0], node.outputs[0].dtype
    scale, zero = array_of(node.inputs[1]), array_of(node.inputs[2])
    if dtype not in (ir.DataType.UINT8, ir.DataType.INT8) or scale is None or zero is None:
        return
    if scale.ndim or not output.uses():
        return
    info = np.iinfo(dtype.numpy())
    steps = np.rint(np.asarray(bounds, scale.dtype) / scale) + float(zero)
    low, high = (int(np.clip(step, info.min, info.max)) for step in steps)
    node.replace_input_with(0, source)
    if (low, high) == (info.min, info.max):
        return
    held = node.inputs[1].name if node.inputs[1] is not None else None
    stem = (held or "grid").removesuffix("_scale")
    ends = [
        draft.constant(np.asarray(end, dtype.numpy()), f"{stem}_integer_{name}")
        for end, name in ((low, "low"), (high, "high"))
    ]
    readers = [(use.node, use.idx) for use in output.uses()]
    clipped = draft.insert(readers[0][0], "Clip", [output, *ends], like=output, dtype=dtype)
    for reader, position in readers:
        reader.replace_input_with(position, clipped)


def widen_weights(draft: Draft) -> None:
    """Store four-bit weights in eight if the input is quantized: kernels multiply pairs of eight bits."""
    widened = []
    for node in layers_of(draft.graph):
        stored, weight = read(node.inputs[1]), node.inputs[1]
        if stored is None or weight is None or stored.dtype not in _FOUR_BITS:
            continue
        if stored.block_size is None and integer_type(node.inputs[0]) is not None:
            wide = replace(stored, dtype=_FOUR_BITS[stored.dtype])
            name = f"{name_of(weight)}_widened"
            node.replace_input_with(1, wide.write(draft, node, name, weight))
            widened.append(str(node.name))
    draft.notes += notes_on(
        widened,
        "weights of four bits or fewer are stored in eight, because integer kernels "
        "multiply 8-bit values; export_onnx(…, target='generic') packs them.",
    )


def refuse_ragged(draft: Draft) -> None:
    """Raise for groups of unequal size, which OpenVINO cannot read."""
    for node in draft.graph:
        stored = read(node.outputs[0]) if node.op_type == "DequantizeLinear" else None
        if stored is not None and stored.block_size is not None and stored.axis is not None:
            size = stored.integers.shape[stored.axis]
            if size % stored.block_size:
                raise ExportError(
                    f"{name_of(node.outputs[0])}: OpenVINO cannot split {size} weights into groups of "
                    f"{stored.block_size}; choose a group_size that divides {size}."
                )


def unfold_gemms(draft: Draft) -> None:
    """Turn a Gemm with an integer weight and a float input into MatMul and Add.

    Runtimes support weights of four or eight bits, unpacked on the fly, in MatMul only.
    """
    for node in [node for node in draft.graph if node.op_type == "Gemm"]:
        stored, weight = read(node.inputs[1]), node.inputs[1]
        is_plain = integer_attribute(node, "transA", 0) == 0
        if stored is None or weight is None or integer_type(node.inputs[0]) or not is_plain:
            continue
        if integer_attribute(node, "transB", 0):
            turned = stored.transposed((1, 0))
            weight = turned.write(draft, node, f"{name_of(weight)}_transposed", weight)
        output, bias = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
        product = draft.insert(node, "MatMul", [node.inputs[0], weight], like=output)
        product.producer().name = node.name  # type: ignore[union-attr]
        if bias is not None:
            product = _add_apart(draft, node, product, bias)
        draft.replace(output, product)


def _add_apart(draft: Draft, node: ir.Node, product: ir.Value, bias: ir.Value) -> ir.Value:
    """Add a bias in a way that ONNX Runtime does not fuse back into a Gemm: with one more axis."""
    first = draft.constant(np.asarray([0]), "first_axis")
    wide = draft.insert(node, "Unsqueeze", [product, first], like=product)
    array = array_of(bias)
    if array is None or array.ndim != 1:
        return draft.insert(node, "Add", [product, bias], like=product)
    apart = draft.constant(array.reshape(1, 1, -1), f"{bias.name}_apart")
    added = draft.insert(node, "Add", [wide, apart], like=product)
    size = [] if product.shape is None else list(product.shape)
    wide.shape = added.shape = ir.Shape([1, *size])
    return draft.insert(node, "Squeeze", [added, first], like=product)


def find_notes(layers: list[Layer], draft: Draft, target: str) -> list[str]:
    """Return notes on what makes a file slower than necessary, with the remedy."""
    notes = note_defaults(draft.placements)
    if target == "generic":
        return notes
    signed = [str(n.name) for n in layers_of(draft.graph) if integer_type(n.inputs[0]) in _SIGNED]
    notes += notes_on(
        signed,
        "signed activations. CPUs without VNNI add pairs of products in 16 bits and "
        "saturate (measured 12 dB instead of 32 on ResNet-18), and ONNX Runtime leaves layers in float; "
        "use quant_dtype 'uint' for inputs and outputs.",
    )
    open_ended = [x.name for x in layers if x.reason == "its output is not quantized"]
    if target == "onnxruntime":
        notes += notes_on(
            open_ended,
            "the output is not quantized, so ONNX Runtime computes these in float "
            "(ResNet-18: 0.94 times the speed of float instead of 1.86). Pass example_inputs to the "
            "quantizer, or add 'output' to quant_types.",
        )
    only = [x.name for x in layers if x.weight_only and x.op != "MatMul"]
    notes += notes_on(
        only,
        "only the weight is quantized: the file is smaller, but not faster. Add "
        "'input' and 'output' to quant_types.",
    )
    unpacked = [x.name for x in layers if x.op == "MatMul" and x.weight_only]
    notes += notes_on(
        unpacked,
        "only the weight is quantized. This is faster for single rows, as in text "
        "generation (2 to 4 times in ONNX Runtime), but not for many: without VNNI, four bits are as "
        "fast as float with 16 rows and slower with 128 (0.8; eight bits 0.6). Dynamic inputs (in "
        "PyTorch: observer 'dynamic', 'input' in quant_types) are faster than float for both.",
    )
    whole = whole_tables(draft.graph)
    if target == "onnxruntime":
        notes += notes_on(
            whole,
            "the whole table is dequantized in each call, because ONNX Runtime cannot "
            "look up its integers; use 8 bits, or 4 in groups of 16, 32, 64 or 128.",
        )
    return notes


@dataclass(frozen=True)
class _Target:
    before: tuple[Callable[[Draft], None], ...] = ()
    after: tuple[Callable[[Draft], None], ...] = ()


TARGETS = {
    "onnxruntime": _Target(
        (order_gates, flatten_linears),
        (
            *(clip_integers, widen_weights, multiply_integers, unfold_gemms, gather_integers),
            *(write_integer_lstms, unpack_recurrent, split_means, pack_groups),
        ),
    ),
    "openvino": _Target(
        (order_gates,), (refuse_ragged, widen_weights, unfold_gemms, unpack_recurrent)
    ),
    "generic": _Target((order_gates,)),
}
