"""Layers and operations that treat every element equally."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import KerasTensor, tree

from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, lowering
from lilliput.graph.ir import Tensor

# Functions of keras.activations that are elementwise and finite at zero.
_ACTIVATIONS = frozenset(
    {
        *("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "swish"),
        *("mish", "tanh", "tanh_shrink", "sigmoid", "hard_sigmoid", "hard_silu", "hard_swish"),
        *("hard_tanh", "hard_shrink", "soft_shrink", "softplus", "softsign", "squareplus"),
        *("sparse_plus", "sparse_sigmoid", "log_sigmoid", "exponential", "threshold"),
    }
)
_UNARY = (
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Silu", "HardSilu", "Tanh"),
    *("TanhShrink", "HardTanh", "HardShrink", "SoftShrink", "Softplus", "Softsign", "Squareplus"),
    *("SparsePlus", "SparseSigmoid", "LogSigmoid", "Sigmoid", "HardSigmoid", "Threshold"),
    *("Absolute", "Abs", "Negative", "Square", "Exp", "Expm1", "Sin", "Cos", "Arctan", "Erf"),
    *("Sign", "Floor", "Ceil", "Round", "Clip", "Cast", "StopGradient", "Copy"),
)
_COMBINING = (
    *("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Where"),
    *("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"),
)
# Neutral names of those that map zeros to zeros, possibly under conditions; others need none.
_NEUTRAL = {
    **{x: x.lower() for x in ("Relu", "Relu6", "Elu", "Selu", "Celu", "Gelu", "Silu", "Tanh")},
    **{x: x.lower() for x in ("Square", "Sign", "Floor", "Ceil", "Round", "Sin", "Expm1", "Erf")},
    **{"LeakyRelu": "leaky_relu", "HardSilu": "hardswish", "Negative": "neg", "Arctan": "atan"},
    **{"Absolute": "abs", "Abs": "abs", "HardShrink": "hardshrink", "SoftShrink": "softshrink"},
    **{"Add": "add", "Subtract": "sub", "Multiply": "mul", "Maximum": "maximum"},
    **dict.fromkeys(("Cast", "StopGradient", "Copy"), "identity"),
    **{"Minimum": "minimum", "hard_silu": "hardswish", "hard_swish": "hardswish", "swish": "silu"},
    **{"hard_shrink": "hardshrink", "soft_shrink": "softshrink", "linear": "identity"},
}


def activate(writer: Writer, tensor: Tensor, activation: Any) -> Tensor:
    """Apply the activation built into a layer; one that compares channels pins all of them."""
    name = getattr(activation, "__name__", "")
    known = getattr(keras.activations, name, None) if name in _ACTIVATIONS else None
    if activation is None:
        return tensor
    if known is activation:
        return _apply(writer, _NEUTRAL.get(name, name), tensor)
    if {*writer.node.outputs} & {*writer.calls.outputs}:  # these are pinned anyway
        return tensor
    why = f"the activation {name or type(activation).__name__!r} may mix them"
    made: Tensor = writer.op("stays", tensor.shape, input=tensor, because=why)
    return made


def _apply(writer: Writer, name: str, tensor: Tensor) -> Tensor:
    made: Tensor = writer.op(name, tensor.shape, is_pointwise=True, input=tensor)
    return made


@lowering("Activation")
def activation(writer: Writer) -> Any:
    """Apply a function to each element."""
    return activate(writer, writer.input(), writer.layer.activation)


@lowering("ReLU", "LeakyReLU", "ELU")
def rectified(writer: Writer) -> Any:
    """Apply a rectifier; with a threshold it may map zero to another value."""
    is_plain = not getattr(writer.layer, "threshold", 0)
    return _apply(writer, "relu" if is_plain else "threshold", writer.input())


@lowering(
    *("Identity", "ActivityRegularization", "GaussianNoise", "GaussianDropout"),
    *("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
)
def unchanged(writer: Writer) -> Any:
    """Keep every element where it is."""
    return writer.input()


@lowering("Dropout", "AlphaDropout")
def dropout(writer: Writer) -> Any:
    """Keep every element where it is; the shape of the noise may be specified."""
    noise = getattr(writer.layer, "noise_shape", None) or ()
    if any(size not in (None, 1) for size in noise[1:]):
        raise UnknownError("the shape of its noise is specified")
    return writer.input()


@lowering("Rescaling")
def rescaling(writer: Writer) -> Any:
    """Multiply and add numbers."""
    if np.ndim(writer.layer.scale) or np.ndim(writer.layer.offset):
        raise UnknownError("it has a number for each channel")
    x = writer.input()
    return writer.op("add", x.shape, is_pointwise=True, input=x, other=float(writer.layer.offset))


@lowering("PReLU")
def prelu(writer: Writer) -> Any:
    """Share the channels of the slopes; if both are zero the result is zero, as for a sum."""
    x, slopes = writer.input(), writer.parameter("alpha")
    return writer.op("add", x.shape, is_pointwise=True, input=x, other=slopes)


@lowering(*(f"ops.{name}" for name in (*_UNARY, *_COMBINING)))
def operation(writer: Writer) -> Any:
    """Combine tensors element by element, aligned at their last dimensions."""
    _refuse_arrays(writer)
    kind = type(writer.layer).__name__
    name = _NEUTRAL.get(kind, kind.lower())
    first, *others = writer.inputs()
    given: dict[str, Any] = {f"other{i or ''}": x for i, x in enumerate(others)}
    numbers = [x for x in _flat(writer) if isinstance(x, (int, float))]
    if not others and numbers and kind in _COMBINING:
        given["other"] = numbers[0]
    return writer.op(name, writer.shape(), is_pointwise=True, input=first, **given)


@lowering("ops.Divide", "ops.TrueDivide", "ops.DivideNoNan")
def divide(writer: Writer) -> Any:
    """Divide element by element."""
    _refuse_arrays(writer)
    tensors, shape = writer.inputs(), writer.shape()
    if len(tensors) == 2:
        return writer.op("div", shape, is_pointwise=True, input=tensors[0], other=tensors[1])
    if isinstance(_flat(writer)[-1], KerasTensor):
        return writer.op("reciprocal", shape, is_pointwise=True, input=tensors[0])
    return writer.op("div", shape, is_pointwise=True, input=tensors[0])


@lowering("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
def merge(writer: Writer) -> Any:
    """Combine element by element; shorter shapes are filled up after the batch dimension."""
    shape, filled = writer.shape(), []
    for x in writer.inputs():
        missing = (1,) * (len(shape) - len(x.shape))
        longer = (*x.shape[:1], *missing, *x.shape[1:])
        filled.append(writer.op("unsqueeze", longer, input=x) if missing else x)
    kind = type(writer.layer).__name__
    name = "add" if kind == "Average" else _NEUTRAL[kind]
    given = {f"other{i or ''}": x for i, x in enumerate(filled[1:])}
    return writer.op(name, shape, is_pointwise=True, input=filled[0], **given)


def _flat(writer: Writer) -> list[Any]:
    given = writer.node.arguments
    return [x for x in tree.flatten((given.args, given.kwargs)) if x is not None]


def has_array(writer: Writer) -> bool:
    """Whether an operation contains, or is called with, an array that is not a tensor of the graph."""
    held = [value for value in vars(writer.layer).values() if hasattr(value, "dtype")]
    flat = [*_flat(writer), *held]
    return any(not isinstance(x, KerasTensor) and len(getattr(x, "shape", ())) > 0 for x in flat)


def _refuse_arrays(writer: Writer) -> None:
    if has_array(writer):
        raise UnknownError("it contains an array")
