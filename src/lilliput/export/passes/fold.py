"""Second pass: fold a BatchNormalization into the preceding layer, exactly.

``y = f * (conv(x) - mean) + beta`` with one factor ``f`` per channel. The integers of a weight do not
change, except for the sign if a factor is negative; the factor goes into the scales.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import Draft, array_of, integer_attribute, only_reader, producer
from lilliput.export.passes.integers import Array, Stored, bounds, name_of, read


def fold_norms(draft: Draft) -> None:
    """Fold every BatchNormalization that directly follows a layer with a constant weight."""
    for norm in [node for node in draft.graph if node.op_type == "BatchNormalization"]:
        layer = norm.inputs[0].producer() if norm.inputs[0] is not None else None
        if layer is not None and only_reader(layer.outputs[0]) is norm:
            axis = _channel_axis(layer)
            if axis is not None:
                _fold(draft, layer, norm, axis)
    draft.sweep()


def _channel_axis(layer: ir.Node) -> int | None:
    """Return the output channel axis of a layer's weight, or None if it cannot be folded."""
    if layer.op_type == "Conv":
        return 0
    if layer.op_type == "ConvTranspose" and integer_attribute(layer, "group", 1) == 1:
        return 1
    if layer.op_type == "Gemm":
        scales = (layer.attributes.get(name) for name in ("alpha", "beta"))
        if all(x is None or x.as_float() == 1.0 for x in scales):
            return 1 - integer_attribute(layer, "transB", 0)
    return None


def _fold(draft: Draft, layer: ir.Node, norm: ir.Node, axis: int) -> None:
    arrays = [array_of(x) for x in norm.inputs[1:5]]
    found = layer.inputs[2] if len(layer.inputs) > 2 else None
    bias = array_of(found)
    weight = layer.inputs[1]
    if any(x is None for x in arrays) or (found is not None and bias is None) or weight is None:
        return
    gamma, beta, mean, variance = (np.asarray(x, np.float64) for x in arrays)
    epsilon = norm.attributes.get("epsilon")
    spread = np.sqrt(variance + (1e-5 if epsilon is None else epsilon.as_float()))
    factor = gamma / spread
    folded = _scaled_weight(draft, layer, weight, factor, axis)
    if folded is None:
        return
    dtype = (weight.dtype or ir.DataType.FLOAT).numpy()
    shift = ((0.0 if bias is None else bias.astype(np.float64)) - mean) * factor + beta
    name = (norm.inputs[2].name if norm.inputs[2] is not None else None) or "bias"
    layer.replace_input_with(1, folded)
    _set_bias(layer, draft.constant(shift.astype(dtype), f"{name}_folded"))
    draft.replace(norm.outputs[0], layer.outputs[0])


def _set_bias(layer: ir.Node, bias: ir.Value) -> None:
    if len(layer.inputs) < 3:
        layer.resize_inputs(3)
    layer.replace_input_with(2, bias)


def _scaled_weight(
    draft: Draft, layer: ir.Node, weight: ir.Value, factor: Array, axis: int
) -> ir.Value | None:
    """Return the weight times one factor per output channel, or None if it is not a constant."""
    stored = read(weight)
    if stored is not None:
        scaled = scale_channels(stored, factor, axis)
        if scaled is None:
            draft.notes.append(
                f"{layer.name or name_of(weight)}: its batch norm could not be folded into the integer "
                "weight, so both stay in floating point."
            )
            return None
        return scaled.write(draft, layer, f"{name_of(weight)}_folded", weight)
    plain = array_of(weight)
    if plain is None or producer(weight, "DequantizeLinear") is not None:
        return None
    shape = [1] * plain.ndim
    shape[axis] = -1
    product = (plain.astype(np.float64) * factor.reshape(shape)).astype(plain.dtype)
    return draft.constant(product, f"{weight.name}_folded")


def scale_channels(stored: Stored, factor: Array, axis: int) -> Stored | None:
    """Return integers that represent the same numbers times one factor per channel.

    None if a sign cannot be flipped: int8 has -128 but not 128.

    Examples
    --------
    >>> import onnx_ir, numpy
    >>> weight = numpy.array([[3, -5], [7, 0]])
    >>> ones = numpy.ones(2, numpy.float32), numpy.zeros(2, numpy.int32)
    >>> stored = Stored(weight, *ones, onnx_ir.DataType.INT8, axis=0)
    >>> scaled = scale_channels(stored, numpy.array([-2.0, 0.5]), 0)
    >>> scaled.integers.tolist(), scaled.scale.tolist()
    ([[-3, 5], [7, 0]], [2.0, 0.5])
    """
    wide = stored.per_channel(axis)
    if wide is None:
        return None
    shape = [1] * wide.integers.ndim
    shape[axis] = -1
    sign = np.where(factor < 0, -1, 1).reshape(shape)
    zero = wide.spread(wide.zero_point)
    integers = zero + sign * (wide.integers - zero)
    integers = np.where(factor.reshape(shape) == 0, zero, integers).astype(np.int32)
    low, high = bounds(wide.dtype)
    if integers.min(initial=0) < low or integers.max(initial=0) > high:
        return None
    size = np.where(factor == 0, 1.0, np.abs(factor))
    size = size if wide.block_size is None else size.reshape(shape)
    scale = (wide.scale.astype(np.float64) * size).astype(wide.scale.dtype)
    if not np.isfinite(scale).all():
        return None
    # A filter without weights has the smallest scale, and a factor below one would make it zero.
    scale = np.maximum(scale, np.finfo(scale.dtype).tiny)
    return replace(wide, integers=integers, scale=scale)
