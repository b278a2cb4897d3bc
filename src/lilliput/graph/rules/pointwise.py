"""Ops that treat every element equally: dimensions are kept, operands lose the same indices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, is_zero, zero

# f(0) = 0 for these, whatever their other arguments are.
_ZERO_TO_ZERO = frozenset(
    {
        *("relu", "relu6", "gelu", "silu", "mish", "tanh", "leaky_relu", "elu", "selu"),
        *("celu", "hardswish", "prelu", "rrelu", "softshrink", "hardshrink"),
        *("abs", "neg", "positive", "square", "sign", "round", "floor", "ceil", "trunc"),
        *("sin", "tan", "asin", "atan", "sinh", "erf", "expm1", "log1p", "nan_to_num"),
        *("dropout", "identity"),
    }
)
_POLES = frozenset({"sqrt", "rsqrt", "log", "log2", "log10", "reciprocal"})


@rule(
    *("identity", "dropout", "hardswish", "rrelu", "__and__", "__or__", "positive", "celu", "selu"),
    *("nan_to_num", "isclose", "logical_not", "sigmoid", "hardsigmoid", "masked_fill", "where"),
    "clamp",
)
def elementwise(walk: Walk, a: SimpleNamespace) -> Any:
    """Align the operands at the last dimension, as broadcasting does."""
    operands = [x for x in vars(a).values() if isinstance(x, Value)]
    if not isinstance(a.shapes, tuple):
        return None if a.shapes is None else [operands[0], *[None] * (len(a.shapes) - 1)]
    _pin_at_poles(walk, a, operands)
    value = broadcast(walk, operands, a.shapes, lambda axes: keeps_zero(walk, a, axes))
    if walk.op.name == "identity" and operands[0].shape == a.shapes:
        return replace(value, origin=operands[0].origin, is_parameter=operands[0].is_parameter)
    return value


def _pin_at_poles(walk: Walk, a: SimpleNamespace, operands: list[Value]) -> None:
    """Pin channels whose masked zeros would meet an infinite value or slope and become NaN."""
    name = walk.op.name
    exponent = getattr(a, "exponent", None)
    risky = operands[:1] if name in _POLES else []
    if name == "pow" and isinstance(exponent, (int, float)) and exponent < 1:
        risky = operands[:1]
    if name == "div":
        risky = operands[1:]
    for operand in risky:
        for axis in operand.axes:
            if is_zero(axis):
                walk.pin(axis, because="masked zeros would give infinities here")


def broadcast(walk: Walk, operands: list[Value], shape: tuple[int, ...], keeps: Any) -> Value:
    """Return the value of operands that are combined element by element."""
    axes: list[Axis] = []
    for d in range(len(shape)):
        here: list[Axis | None] = []
        for operand in operands:
            at = d - len(shape) + len(operand.shape)
            has_one = at >= 0 and (operand.shape[at] > 1 or shape[d] == 1)
            here.append(operand.axes[at] if has_one else None)
        walk.same(*here)
        given = next((axis for axis in here if axis is not None), FIXED)
        axes.append(zero(given, keeps(here)))
    return Value(shape, tuple(axes))


def keeps_zero(walk: Walk, a: SimpleNamespace, axes: list[Axis | None]) -> bool:
    """Whether removed values that are zero in the operands are zero in the result."""
    name = walk.op.name
    flags = [axis is not None and is_zero(axis) for axis in axes]
    numbers = [a.other] if isinstance(getattr(a, "other", None), (int, float)) else []
    if name == "mul":
        return any(flags)
    if name == "div":
        return flags[0]
    if name in ("add", "sub", "maximum", "minimum", "fmod", "remainder"):
        return all(flags) and not any(numbers)
    if name == "pow":
        return (
            flags[0] and isinstance(getattr(a, "exponent", None), (int, float)) and a.exponent > 0
        )
    if name == "masked_fill":
        return flags[0] and a.value == 0
    if name in ("clamp", "clamp_min", "hardtanh"):
        low, high = (getattr(a, x, getattr(a, f"{x}_val", None)) for x in ("min", "max"))
        if isinstance(low, Value) or isinstance(high, Value):
            return False
        return flags[0] and (low or 0) <= 0 <= (high if high is not None else 0)
    return name in _ZERO_TO_ZERO and all(flags)


@rule("prelu")
def prelu(walk: Walk, a: SimpleNamespace) -> Value:
    """Share the slopes' channels with dimension 1."""
    if a.weight.shape and a.weight.shape[0] > 1:
        walk.same(a.input.axes[1], a.weight.axes[0])
    return Value(a.shapes, a.input.axes)


@rule("glu")
def glu(walk: Walk, a: SimpleNamespace) -> Value:
    """Gate one half by the other: both lose the same indices."""
    axes = list(a.input.axes)
    half = a.input.shape[a.dim] // 2
    first = walk.axes.take(axes[a.dim], slice(0, half))
    walk.same(first, walk.axes.take(axes[a.dim], slice(half, None)))
    axes[a.dim] = first
    return Value(a.shapes, tuple(axes))
