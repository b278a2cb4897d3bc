"""Recurrent layers in ONNX files: their integer weights, and ONNX Runtime's LSTM that computes with them.

ONNX Runtime has one integer kernel for recurrent layers, ``DynamicQuantizeLSTM``. It rounds the input and,
at every step, the state to 8 bits, with scales computed at run time. This is not simulated: the
simulation has integer weights and float activations, and is compared with the same weights in a float
LSTM (:mod:`~lilliput.export.exact`). Unsigned weights never saturate, on any CPU.

Measured with ONNX Runtime 1.31 on a CPU without VNNI, one thread, relative to the float kernel: 160 steps of
one example with 64, 128, 256 and 512 units are 1.1, 1.6, 2.3 and 2.4 times as fast, of 16 examples 1.1, 1.2,
1.3 and 1.4 times; with 32 units 0.8. Weights of 7 bits, which may be signed: 1.4, 2.1, 3.2 and 3.0 times
for one example. Integer weights that are unpacked in every call, the only way for GRU: 1.0 times for one
example, 0.8 for 16, 0.5 for a single step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.export.exact import INTEGER_LSTM
from lilliput.export.notes import notes_on
from lilliput.export.passes.graph import CONTRIB, Draft, integer_attribute
from lilliput.export.passes.moved import Moved, moved_integers

_RECURRENT = frozenset({"LSTM", "GRU", "RNN", INTEGER_LSTM})
_ONLY_THERE = "only ONNX Runtime has an integer kernel for LSTM"
_FEWEST = 64  # number of units from which the integer kernel is faster
_SAFE = 64  # signed weights up to this never saturate: a pair of products fits into 16 bits
_UNSIGNED = 128  # the zero point of unsigned weights
_BITS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4)


def is_recurrent(node: ir.Node) -> bool:
    """Whether a node is a recurrent layer, in float or on integers."""
    return node.op_type in _RECURRENT and node.domain in ("", CONTRIB)


def order_gates(draft: Draft) -> None:
    """Write the weights of recurrent layers as integers in the order of ONNX, without slices."""
    for node in _float_layers(draft):
        for position in (1, 2):
            weight, found = node.inputs[position], moved_integers(node.inputs[position])
            if weight is None or found is None or not found.has_rows:
                continue
            name = f"{found.name}_gates"
            flat = found.flat().write(draft, node, name, weight)
            shape = draft.constant(np.asarray(found.integers.shape), f"{name}_shape")
            node.replace_input_with(
                position, draft.insert(node, "Reshape", [flat, shape], like=weight)
            )
    draft.sweep()


def write_integer_lstms(draft: Draft) -> None:
    """Replace LSTMs with integer weights by ONNX Runtime's integer kernel."""
    for node in _float_layers(draft):
        weights = [moved_integers(x) for x in node.inputs[1:3]]
        known = [x for x in weights if x is not None]
        if len(known) < 2 or _refusal(node, known):
            continue
        inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
        for position, weight in enumerate(known, 1):
            inputs[position], *more = _packed(draft, weight)
            inputs += more
        kept = [x for name, x in node.attributes.items() if name != "layout"]
        new = ir.Node(CONTRIB, INTEGER_LSTM, inputs, kept, num_outputs=len(node.outputs))
        new.metadata_props.update(node.metadata_props)
        draft.graph.insert_before(node, new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            made.shape, made.type = old.shape, old.type
            draft.replace(old, made)
        draft.model.opset_imports[CONTRIB] = 1
    draft.sweep()


def unpack_recurrent(draft: Draft) -> None:
    """Store the weights of layers that stay in float as float.

    ONNX Runtime would unpack integers in every call, which is slower; OpenVINO does not support them.
    """
    unpacked = []
    for node in _float_layers(draft):
        weights = [moved_integers(x) for x in node.inputs[1:3]]
        known = [x for x in weights if x is not None]
        if len(known) < 2:
            continue
        node.doc_string = _refusal(node, known) or _ONLY_THERE
        for position, weight in enumerate(known, 1):
            constant = draft.constant(weight.reals(), f"{weight.name}_unpacked")
            node.replace_input_with(position, constant)
        unpacked.append(str(node.name))
    draft.sweep()
    draft.notes += notes_on(
        unpacked,
        "quantized weights are stored as float, because runtimes would unpack "
        "integers in every call, which is slower, or do not support them; target='generic' packs them.",
    )


def why_float(node: ir.Node) -> str:
    """Return why a recurrent layer is computed in floating point, or an empty string."""
    if node.op_type == INTEGER_LSTM or node.doc_string:
        return node.doc_string or ""
    known = [x for x in map(moved_integers, node.inputs[1:3]) if x is not None]
    if len(known) < 2:
        return "its weights are not quantized"
    return _refusal(node, known) or _ONLY_THERE


def weight_type(node: ir.Node) -> str:
    """Return the type of the stored weights of a recurrent layer."""
    held, found = node.inputs[1], moved_integers(node.inputs[1])
    dtype = found.dtype if found is not None else None if held is None else held.dtype
    return "" if dtype is None else dtype.name.lower()


def _float_layers(draft: Draft) -> list[ir.Node]:
    return [x for x in draft.graph if is_recurrent(x) and x.op_type != INTEGER_LSTM]


def _refusal(node: ir.Node, weights: list[Moved]) -> str:
    """Return why the integer kernel cannot or should not compute a layer, or an empty string."""
    if node.op_type != "LSTM":
        return f"no integer kernel for {node.op_type}"
    if integer_attribute(node, "layout", 0):
        return "no integer kernel for batch-first LSTM"
    for weight in weights:
        if weight.dtype not in _BITS:
            return f"no integer kernel for {weight.dtype.name.lower()} weights of LSTM"
        if not weight.has_rows:
            return "no integer kernel for weights of LSTM with a scale per group"
        if weight.steps.min() < -_UNSIGNED or weight.steps.max() >= _UNSIGNED:
            return "no integer kernel for weights of LSTM that are not symmetric"
    units = weights[1].integers.shape[-1]
    return f"float is faster with {units} units" if units < _FEWEST else ""


def _packed(draft: Draft, weight: Moved) -> list[Any]:
    """Return a weight in the form of the kernel (directions, inputs, gates), its scales and zero points."""
    is_signed = int(np.abs(weight.steps).max()) <= _SAFE
    zero, dtype = (0, np.int8) if is_signed else (_UNSIGNED, np.uint8)
    columns = np.ascontiguousarray((weight.steps + zero).transpose(0, 2, 1).astype(dtype))
    return [
        draft.constant(columns, f"{weight.name}_columns"),
        draft.constant(weight.row_scales, f"{weight.name}_scales"),
        draft.constant(np.full(weight.row_scales.shape, zero, dtype), f"{weight.name}_zero_points"),
    ]
