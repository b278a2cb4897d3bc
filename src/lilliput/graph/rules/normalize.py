"""Normalization layers. Those with statistics over channels will see fewer of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import Axis
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, zero


def _affine(walk: Walk, axis: Axis, a: SimpleNamespace, dim: int = 0) -> bool:
    """Share an axis with scale and shift; return whether masking both makes removed channels zero."""
    given = [x for x in (a.weight, getattr(a, "bias", None)) if x is not None]
    walk.same(axis, *[x.axes[dim] for x in given])
    return a.weight is not None and all(x.is_parameter for x in given)


@rule("batch_norm")
def batch_norm(walk: Walk, a: SimpleNamespace) -> Any:
    """Normalize each channel separately."""
    axes = list(a.input.axes)
    held = [x.axes[0] for x in (a.running_mean, a.running_var) if x is not None]
    walk.same(axes[1], *held)
    walk.pin(*axes[2:], because="statistics are computed over it")
    axes[1] = zero(axes[1], _affine(walk, axes[1], a))
    shape = a.shapes if isinstance(a.shapes, tuple) else a.shapes[0]
    value = Value(shape, tuple(axes))
    return value if isinstance(a.shapes, tuple) else [value, *[None] * (len(a.shapes) - 1)]


@rule("layer_norm")
def layer_norm(walk: Walk, a: SimpleNamespace) -> Any:
    """Normalize over the last dimensions."""
    axes = list(a.input.axes)
    first = len(axes) - len(a.normalized_shape)
    for d in range(first, len(axes)):
        masked = _affine(walk, axes[d], a, d - first)
        walk.changes(axes[d], "a norm over channels")
        axes[d] = zero(axes[d], masked)
    if a.weight is None or getattr(a, "bias", None) is not None:
        axes[:first] = [zero(axis, False) for axis in axes[:first]]
    if isinstance(a.shapes, tuple):
        return Value(a.shapes, tuple(axes))
    return [Value(a.shapes[0], tuple(axes)), *[None] * (len(a.shapes) - 1)]


@rule("group_norm")
def group_norm(walk: Walk, a: SimpleNamespace) -> Value:
    """Normalize over each group of channels; all groups keep the same number."""
    axes = list(a.input.axes)
    walk.pin(*axes[2:], because="statistics are computed over it")
    masked = _affine(walk, axes[1], a)
    if a.num_groups < a.input.shape[1]:
        if a.num_groups > 1 and not walk.balance(axes[1], a.num_groups):
            walk.split(axes[1], (a.num_groups, a.input.shape[1] // a.num_groups))
        walk.changes(axes[1], "a norm over channels")
    axes[1] = zero(axes[1], masked)
    return Value(a.shapes, tuple(axes))
