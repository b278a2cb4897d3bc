"""Run operators between integers on integers: weights as int8, biases as int32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lilliput.export.keras.litert.draft import Draft, Scales
from lilliput.export.keras.litert.propagate import quantized_to, take_output
from lilliput.export.keras.litert.schema import names
from lilliput.export.keras.litert.weights import WEIGHTS, Found
from lilliput.frameworks.exporting.simulation import Array

# The positions of their activations.
_ACTIVATIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), (0,)),
    "TRANSPOSE_CONV": (2,),
    **dict.fromkeys(("ADD", "SUB", "MUL", "BATCH_MATMUL"), (0, 1)),
    **dict.fromkeys(("MEAN", "RELU", "RELU6", "LEAKY_RELU", "AVERAGE_POOL_2D"), (0,)),
}
_BIASES = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
_PLAIN_ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
_SAME_SCALE = frozenset({"AVERAGE_POOL_2D"})
# Supported factors between XNNPACK's sums and the output: it fails on files with others.
_FACTORS = {"ADD": (2**-10, 2**8), "SUB": (2**-10, 2**8), "MUL": (2**-16, 2**8)}
_OTHER_FACTORS = (2**-8, 2**7)
_LARGEST = 2**31 - 1
_ROOMY = 2**30
_SHOWS = 0.1  # of a step


def fuse(draft: Draft, weights: Mapping[int, Found]) -> bool:
    """Convert every operator that can use integers; return whether any was converted."""
    changed = False
    for operator in list(draft.operators):
        is_done = not operator.outputs or draft.dtype(operator.outputs[0]) == "int8"
        if is_done or not draft.holds(operator):
            continue
        if draft.kind(operator) == "CONCATENATION":
            changed |= _join(draft, operator)
        elif draft.kind(operator) in _ACTIVATIONS and not why_float(draft, operator, weights):
            _to_integers(draft, operator, weights.get(id(operator)))
            changed = True
    return changed


def why_float(draft: Draft, operator: Any, weights: Mapping[int, Found]) -> str:
    """Return why an operator cannot use integers, or an empty string if it can or does."""
    kind = draft.kind(operator)
    if draft.dtype(operator.outputs[0]) == "int8":
        return ""
    if kind not in _ACTIVATIONS:
        return f"LiteRT has no integer kernel for {kind}"
    found = weights.get(id(operator))
    if kind in _BIASES:
        if found is None:
            return "its weight is not quantized"
        if found.integers is None:
            return found.reason
    if any(draft.source(operator.inputs[i]) is None for i in _ACTIVATIONS[kind]):
        return "its input is not quantized to int8"
    wanted = quantized_to(draft, operator.outputs[0])
    if wanted is None:
        return (
            "its output is not quantized to int8: right after it, or "
            "after an activation inside the layer that is not a ReLU "
            "(make that a separate layer)"
        )
    return _why_not(draft, operator, found, wanted)


def _why_not(draft: Draft, operator: Any, found: Found | None, wanted: Scales) -> str:
    """Return why an operator cannot use integers although all its tensors are quantized."""
    kind = draft.kind(operator)
    function = getattr(operator.builtinOptions, "fusedActivationFunction", 0)
    if names("ActivationFunctionType")[function] not in _PLAIN_ACTIVATIONS:
        return "LiteRT has no integer kernel for its activation"
    held = [draft.scales(_source(draft, operator, i)) for i in _ACTIVATIONS[kind]]
    if kind in _SAME_SCALE and any(x is None or not x.is_same(wanted) for x in held):
        return "LiteRT averages integers only if input and output share a grid"
    if not _is_near(kind, [x for x in held if x is not None], found, wanted):
        return "its scales are too far apart for integer kernels"
    position = _BIASES.get(kind, len(operator.inputs))
    if found is None or len(operator.inputs) <= position or operator.inputs[position] < 0:
        return ""
    bias = draft.constant(operator.inputs[position])
    if bias is None or held[0] is None:
        return "its bias is not a constant"
    _, steps, integers = _bias(bias, float(held[0].scale[0]), found)
    if not (np.abs(integers) <= _LARGEST).all():
        return "its bias is too large for 32 bits in steps of input scale times weight scale"
    error = np.abs(integers * steps - bias).max(initial=0.0)
    if error > _SHOWS * float(wanted.scale[0]):
        return "its bias is too fine for steps of input scale times weight scale"
    return ""


def _is_near(kind: str, held: list[Scales], found: Found | None, wanted: Scales) -> bool:
    """Whether integer kernels support the ratio of the input scales to the output scale."""
    scales = [float(x.scale[0]) for x in held]
    if found is not None and found.scales is not None:
        factors = scales[0] * found.scales.scale.astype(np.float64)
    elif kind in ("MUL", "BATCH_MATMUL"):
        factors = np.asarray([scales[0] * scales[1]])
    else:
        factors = np.asarray(scales)
    factors = factors / float(wanted.scale[0])
    low, high = _FACTORS.get(kind, _OTHER_FACTORS)
    if kind in _BIASES or kind == "BATCH_MATMUL":
        low, high = 2**-31, 2**8
    return bool((factors >= low).all() and (factors < high).all())


def _source(draft: Draft, operator: Any, position: int) -> int:
    found = draft.source(operator.inputs[position])
    return operator.inputs[position] if found is None else found


def _to_integers(draft: Draft, operator: Any, found: Found | None) -> None:
    kind = draft.kind(operator)
    sources = {i: _source(draft, operator, i) for i in _ACTIVATIONS[kind]}
    for position, source in sources.items():
        operator.inputs[position] = source
    if kind in _BIASES and found is not None and found.integers is not None:
        scales = draft.scales(next(iter(sources.values())))
        if scales is not None:
            _set_weight(draft, operator, found, float(scales.scale[0]))
    take_output(draft, operator)


def _set_weight(draft: Draft, operator: Any, found: Found, scale: float) -> None:
    kind = draft.kind(operator)
    index = operator.inputs[WEIGHTS[kind][0]]
    position = _BIASES[kind]
    scales = found.scales
    if len(operator.inputs) > position and operator.inputs[position] >= 0:
        bias = operator.inputs[position]
        values = draft.constant(bias)
        if values is not None:
            scales, steps, integers = _bias(values, scale, found)
            held = Scales(steps.astype(np.float32), np.zeros(steps.size, np.int64))
            name = f"{found.name}.bias"
            data = integers.astype(np.int32)
            operator.inputs[position] = draft.add_tensor(name, bias, "int32", held, data)
    name = f"{found.name}.weight"
    weight = draft.add_tensor(name, index, "int8", scales, found.integers)
    operator.inputs[WEIGHTS[kind][0]] = weight


def _bias(bias: Array, scale: float, found: Found) -> tuple[Scales, Array, Array]:
    """Return the scales of the weight, the steps of the bias, and its integers.

    If a channel has only zero weights, its scale is arbitrary: it is enlarged so that the bias fits.
    """
    if found.scales is None or found.integers is None:
        raise ValueError(found.name)
    axis = found.scales.axis
    others = tuple(i for i in range(found.integers.ndim) if i != axis)
    is_empty = (found.integers == 0).all(axis=others)
    needed = np.abs(bias.astype(np.float64)) / (scale * _ROOMY)
    held = found.scales.scale.astype(np.float64)
    widened = np.where(is_empty, np.maximum(held, needed), held).astype(np.float32)
    steps = (np.float32(scale) * widened).astype(np.float64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        integers = np.nan_to_num(np.rint(bias.astype(np.float64) / steps), nan=np.inf)
    return Scales(widened, found.scales.zero, axis), steps, integers


def _join(draft: Draft, operator: Any) -> bool:
    """Concatenate integers, all on the grid of the result."""
    wanted = quantized_to(draft, operator.outputs[0])
    sources = [draft.source(index) for index in operator.inputs]
    is_plain = not getattr(operator.builtinOptions, "fusedActivationFunction", 0)
    if wanted is None or not is_plain or any(x is None for x in sources):
        return False
    scales = [draft.scales(x) for x in sources if x is not None]
    if not all(x is not None and _is_near("CONCATENATION", [x], None, wanted) for x in scales):
        return False
    for position, source in enumerate(sources):
        if source is None:
            continue
        held = draft.scales(source)
        if held is None or not held.is_same(wanted):
            name = f"{draft.name(operator.inputs[position])}_joined"
            changed = draft.add_tensor(name, operator.inputs[position], "int8", wanted)
            requantize = draft.make("QUANTIZE", [source], [changed])
            draft.insert_before(operator, requantize)
            source = changed
        operator.inputs[position] = source
    take_output(draft, operator)
    return True


def store_weights(draft: Draft, weights: Mapping[int, Found]) -> None:
    """Store the weights of operators that stay in floating point as integers, too."""
    for operator in list(draft.operators):
        found = weights.get(id(operator))
        position = WEIGHTS.get(draft.kind(operator), (0, 0))[0]
        if found is None or found.integers is None:
            continue
        index = operator.inputs[position]
        if draft.dtype(index) != "float32" or draft.constant(index) is None:
            continue
        name = f"{found.name}.weight"
        integers = draft.add_tensor(name, index, "int8", _single(found.scales), found.integers)
        reals = draft.add_tensor(f"{name}_float", index, "float32")
        draft.tensor(reals).shapeSignature = None
        draft.insert_before(operator, draft.make("DEQUANTIZE", [integers], [reals]))
        draft.replace(index, reals)


def _single(scales: Scales | None) -> Scales | None:
    """Return a single scale if all scales are equal."""
    if scales is None or not (scales.scale == scales.scale[0]).all():
        return scales
    return Scales(scales.scale[:1], scales.zero[:1], 0)
