"""Operations that treat every element alike: dimensions stay, operands lose the same indices."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import KerasTensor, tree

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED, Axis
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Shape, Value, Walk

# Functions of keras.activations that look at one element at a time, and are finite at zero.
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


def activate(walk: Walk, value: Value, activation: Any) -> Value:
    """Apply the activation that a layer has built in; one that compares channels keeps them all."""
    name = getattr(activation, "__name__", "")
    known = getattr(keras.activations, name, None) if name in _ACTIVATIONS else None
    is_last = bool({*walk.at_hand.outputs} & {*walk.graph.outputs})  # these are kept anyhow
    if activation is not None and known is not activation and not is_last:
        shown = name or type(activation).__name__
        walk.pin(*value.axes, because=f"the activation {shown!r} may mix them")
    return value


@rule("Activation")
def activation(walk: Walk, node: Node) -> Value:
    """Apply a function to each element."""
    return activate(walk, walk.input(), node.operation.activation)


@rule(
    *("ReLU", "LeakyReLU", "ELU", "Identity", "ActivityRegularization", "GaussianNoise"),
    *("GaussianDropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
)
def unchanged(walk: Walk, node: Node) -> Value:
    """Keep every element where it is."""
    return walk.input()


@rule("Dropout", "AlphaDropout")
def dropout(walk: Walk, node: Node) -> Any:
    """Keep every element where it is; the shape of the noise may be written down."""
    noise = getattr(node.operation, "noise_shape", None) or ()
    if any(size not in (None, 1) for size in noise[1:]):
        return walk.give_up("the shape of its noise is written down")
    return walk.input()


@rule("Rescaling")
def rescaling(walk: Walk, node: Node) -> Any:
    """Multiply and add numbers."""
    if np.ndim(node.operation.scale) or np.ndim(node.operation.offset):
        return walk.give_up("it holds a number for each channel")
    return walk.input()


@rule("PReLU")
def prelu(walk: Walk, node: Node) -> Value:
    """Share the channels of the slopes."""
    value, alpha = walk.input(), walk.parameter("alpha")
    if alpha is not None:
        for axis, slopes, size in zip(value.axes[1:], alpha.axes, alpha.shape, strict=True):
            if size != 1:
                walk.same(axis, slopes)
    return value


@rule(*(f"ops.{name}" for name in (*_UNARY, *_COMBINING)))
def operation(walk: Walk, node: Node) -> Any:
    """Combine tensors element by element, aligned at their last dimensions."""
    if has_array(node):
        return walk.give_up("it holds an array of its own")
    return broadcast(walk, walk.inputs(), walk.shape())


@rule("ops.Divide", "ops.TrueDivide", "ops.DivideNoNan")
def divide(walk: Walk, node: Node) -> Any:
    """Combine element by element; channels are not divided by, since masked ones may be zero."""
    if has_array(node):
        return walk.give_up("it holds an array of its own")
    flat = [x for x in tree.flatten((node.arguments.args, node.arguments.kwargs)) if x is not None]
    if isinstance(flat[-1], KerasTensor):
        walk.pin(*walk.inputs()[-1].axes, because="masked zeros would give infinities here")
    return broadcast(walk, walk.inputs(), walk.shape())


@rule("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
def merge(walk: Walk, node: Node) -> Value:
    """Combine element by element; shorter shapes are filled up behind the batch."""
    shape = walk.shape()
    filled = []
    for value in walk.inputs():
        missing = len(shape) - len(value.shape)
        axes = (value.axes[0], *(FIXED,) * missing, *value.axes[1:])
        filled.append(Value((value.shape[0], *(1,) * missing, *value.shape[1:]), axes))
    return broadcast(walk, filled, shape)


def broadcast(walk: Walk, operands: list[Value], shape: Shape) -> Value:
    """Return the value of operands that are combined element by element."""
    axes: list[Axis] = []
    for d in range(len(shape)):
        here: list[Axis] = []
        for operand in operands:
            at = d - len(shape) + len(operand.shape)
            if at >= 0 and (operand.shape[at] != 1 or shape[d] == 1):
                here.append(operand.axes[at])
        walk.same(*here)
        axes.append(here[0] if here else FIXED)
    return Value(shape, tuple(axes))


def has_array(node: Node) -> bool:
    """Whether an operation holds an array, or is called with one, that is no tensor of the graph."""
    flat = [*tree.flatten((node.arguments.args, node.arguments.kwargs)), *_held(node.operation)]
    return any(not isinstance(x, KerasTensor) and len(getattr(x, "shape", ())) > 0 for x in flat)


def _held(operation: Any) -> list[Any]:
    return [value for value in vars(operation).values() if hasattr(value, "dtype")]
