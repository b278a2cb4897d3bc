"""Third pass: biases as 32-bit integers, in units of input scale times weight scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, array_of, integer_attribute, producer
from lilliput.export.passes.integers import Array, Stored, name_of, read
from lilliput.export.passes.propagate import MOVERS

_ROOMY = 2**30
_SMALLEST = 1e-30  # a step of input scale times weight scale that every kernel can divide by
_SHOWS = 0.1  # of a step
_EIGHT_BITS = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}
# Pairs of products of 64 * 255 fit into 16 bits on every CPU; unsigned weights are not affected.
_DEEPEST = {ir.DataType.INT8: 64, ir.DataType.UINT8: 255}


def quantize_biases(draft: Draft) -> None:
    """Store the bias of every layer whose input and weight are integers as int32."""
    for node in list(draft.graph):
        if node.op_type in ("Conv", "Gemm") and len(node.inputs) > 2:
            scale = _input_scale(node.inputs[0])
            weight, bias = read(node.inputs[1]), array_of(node.inputs[2])
            if scale is not None and weight is not None and bias is not None and bias.ndim == 1:
                _write(draft, node, scale, weight, bias)
    draft.sweep()


def _input_scale(value: ir.Value | None) -> Array | None:
    """Return the scale of an activation that comes from integers, or None."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type in MOVERS:
        value = maker.inputs[0]
    node = producer(value, "DequantizeLinear")
    if node is None or array_of(node.inputs[0]) is not None:
        return None
    scale = array_of(node.inputs[1])
    return scale if scale is not None and scale.ndim == 0 else None


def _write(draft: Draft, node: ir.Node, scale: Array, weight: Stored, bias: Array) -> None:
    axis = 0 if node.op_type == "Conv" else 1 - integer_attribute(node, "transB", 0)
    held = node.inputs[1]
    wide = weight.per_channel(axis)
    if wide is None or wide.block_size is not None or held is None:
        return
    wide = _give_room(wide, scale, bias, axis)
    integers, steps = _in_steps(bias, scale, wide)
    if _is_coarse(node, _error(bias, integers, steps), scale, wide):
        wide = _give_depth(wide, scale, bias, axis)
        integers, steps = _in_steps(bias, scale, wide)
        if _is_coarse(node, _error(bias, integers, steps), scale, wide):
            # In the shape of the output's channels.
            _add_behind(draft, node, bias.reshape(-1, *[1] * (wide.integers.ndim - 2)))
            return
    if not np.array_equal(wide.scale, np.broadcast_to(weight.scale, wide.scale.shape)):
        node.replace_input_with(1, wide.write(draft, node, name_of(held), held))
    found = node.inputs[2]
    name = found.name if found is not None and found.name else "bias"
    inputs = [
        draft.constant(integers.astype(np.int32), f"{name}_quantized"),
        draft.constant(steps, f"{name}_scale"),
        draft.constant(np.zeros(len(steps), np.int32), f"{name}_zero_point"),
    ]
    if found is not None:
        output = draft.insert(node, "DequantizeLinear", inputs, {"axis": 0}, like=found)
        node.replace_input_with(2, output)


def _in_steps(bias: Array, scale: Array, weight: Stored) -> tuple[Array, Array]:
    """Return a bias as integer steps of input scale times weight scale, and the steps."""
    steps = np.asarray(scale * weight.scale, dtype=weight.scale.dtype)
    return np.rint(bias.astype(np.float64) / steps.astype(np.float64)), steps


def _error(bias: Array, integers: Array, steps: Array) -> float:
    return float(np.abs(integers * steps - bias).max(initial=0.0))


def _is_coarse(node: ir.Node, error: float, scale: Array, weight: Stored) -> bool:
    """Whether rounding a bias is visible in the layer's output: with one or two bits, steps are large."""
    value: ir.Value | None = node.outputs[0]
    while value is not None and len(uses := list(value.uses())) == 1:
        reader = uses[0].node
        if reader.op_type == "QuantizeLinear":
            step = array_of(reader.inputs[1])
            return step is not None and error > _SHOWS * float(np.max(step))
        value = reader.outputs[0] if reader.op_type in ("Relu", "Clip") else None
    largest = np.abs(weight.integers.astype(np.float64)).max(initial=0.0)
    return bool(error > _SHOWS * float(scale) * float(np.max(weight.scale)) * largest)


def _add_behind(draft: Draft, node: ir.Node, bias: Array) -> None:
    """Add a bias after its layer: inside, ONNX Runtime would convert it to int32."""
    output, found = node.outputs[0], node.inputs[2]
    name = found.name if found is not None and found.name else "bias"
    node.replace_input_with(2, None)
    node.resize_inputs(2)
    added = ir.node("Add", [output, draft.constant(bias, f"{name}_behind")])
    added.metadata_props.update(node.metadata_props)
    draft.graph.insert_after(node, added)
    added.outputs[0].shape, added.outputs[0].type = output.shape, output.type
    draft.replace(output, added.outputs[0])
    added.replace_input_with(0, output)
    note = "biases finer than steps of input scale times weight scale are added in float: "
    for i, held in enumerate(draft.notes):
        if held.startswith(note):
            draft.notes[i] = f"{held}, {node.name}"
            return
    draft.notes.append(f"{note}{node.name}")


def _give_room(weight: Stored, scale: Array, bias: Array, axis: int) -> Stored:
    """Raise the scale of channels whose bias is too large for 32 bits, and round their weights to it.

    Trained networks have filters with almost no weight and a bias, left by batch norm. Rounding changes
    the output by at most ``inputs * 255 / 2 / 2**30`` of that bias, negligible compared with an 8-bit step.
    """
    needed = np.maximum(np.abs(bias.astype(np.float64)) / _ROOMY, _SMALLEST) / float(scale)
    is_tight = needed > weight.scale
    if not is_tight.any():
        return weight
    raised = np.where(is_tight, needed, weight.scale).astype(weight.scale.dtype)
    zero = weight.spread(weight.zero_point)
    shrunk = np.rint((weight.integers - zero) * weight.spread(weight.scale / raised))
    shape = [-1 if i == axis else 1 for i in range(weight.integers.ndim)]
    integers = np.where(is_tight.reshape(shape), shrunk + zero, weight.integers)
    return replace(weight, integers=integers.astype(weight.integers.dtype), scale=raised)


def _give_depth(weight: Stored, scale: Array, bias: Array, axis: int) -> Stored:
    """Store small integers as multiples of a power of two, so that the bias has finer steps.

    Four bits are stored in eight in any case; shifted left, with a correspondingly smaller scale, they
    represent the same numbers. The shift is limited so that the bias fits into 32 bits.
    """
    dtype = _EIGHT_BITS.get(weight.dtype, weight.dtype)
    rows = np.moveaxis(weight.integers, axis, 0).reshape(len(weight.scale), -1)
    held = np.maximum(np.abs(rows).max(1, initial=1), np.abs(weight.zero_point))
    steps = float(scale) * weight.scale.astype(np.float64)
    room = _ROOMY * steps / np.maximum(np.abs(bias), steps)
    shifts = np.log2(np.maximum(np.minimum(_DEEPEST.get(dtype, 0) / held, room), 1)).astype(int)
    factors = 2**shifts
    return replace(
        weight,
        integers=weight.integers * weight.spread(factors),
        zero_point=weight.zero_point * factors,
        scale=(weight.scale / factors).astype(weight.scale.dtype),
        dtype=dtype,
    )
