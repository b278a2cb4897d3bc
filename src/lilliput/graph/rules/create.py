"""Ops that create tensors from nothing, and ops that only check."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, zero


@rule("zeros", "full")
def constant(walk: Walk, a: SimpleNamespace) -> Value:
    """Fill a new tensor, which can have any size."""
    is_zero = walk.op.name == "zeros"
    axes = tuple(walk.fresh(d, n, is_zero) for d, n in enumerate(a.shapes))
    for axis in axes:
        walk.copies += [column.labels for column in axis]
    return Value(a.shapes, axes)


@rule("zeros_like", "full_like")
def like(walk: Walk, a: SimpleNamespace) -> Value:
    """Fill a tensor of the same shape as another."""
    is_zero = walk.op.name == "zeros_like"
    return Value(a.shapes, tuple(zero(axis, is_zero) for axis in a.input.axes))


@rule("arange", "linspace", "eye", "tril_indices", "triu_indices", "one_hot", "bucketize", "isin")
def numbering(walk: Walk, a: SimpleNamespace) -> Value:
    """Create numbers that represent their position."""
    for value in vars(a).values():
        if isinstance(value, Value):
            walk.pin(*value.axes)
    return Value.fixed(a.shapes)


@rule("tril", "triu")
def triangle(walk: Walk, a: SimpleNamespace) -> Value:
    """Keep a triangle of the last two dimensions, where positions matter."""
    walk.pin(*a.input.axes[-2:], because="its entries are picked by position")
    return Value(a.shapes, a.input.axes)


@rule("same")
def same(walk: Walk, a: SimpleNamespace) -> Any:
    """Make tensors of one shape lose the same indices."""
    for other in a.tensors[1:]:
        for ours, theirs in zip(a.tensors[0].axes, other.axes, strict=True):
            walk.same(ours, theirs)


@rule("stays")
def stays(walk: Walk, a: SimpleNamespace) -> Value:
    """Keep all channels along some dimensions, or along all."""
    dims = getattr(a, "dims", range(len(a.input.axes)))
    walk.pin(*(a.input.axes[d] for d in dims), because=a.because)
    return Value(a.shapes, a.input.axes)


@rule("unknown")
def unknown(walk: Walk, a: SimpleNamespace) -> Any:
    """Give up on an op that the reader could not translate."""
    return walk.give_up(a.why)


@rule("nothing")
def nothing(walk: Walk, a: SimpleNamespace) -> Any:
    """Return no tensor."""
    return None
