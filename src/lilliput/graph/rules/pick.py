"""Ops that take a part: slices, splits, rows of a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, zero


@rule("slice")
def slice_(walk: Walk, a: SimpleNamespace) -> Value:
    """Keep a range of one dimension."""
    axes = list(a.input.axes)
    if a.step != 1:
        walk.pin(axes[a.dim], because=f"one in {a.step} of its entries is taken")
    axes[a.dim] = walk.axes.take(axes[a.dim], slice(a.start, a.end, a.step))
    return Value(a.shapes, tuple(axes))


@rule("narrow")
def narrow(walk: Walk, a: SimpleNamespace) -> Value:
    """Keep a range of one dimension."""
    axes = list(a.input.axes)
    if not isinstance(a.start, int):
        result: Value = walk.give_up()
        return result
    start = a.start % a.input.shape[a.dim]
    axes[a.dim] = walk.axes.take(axes[a.dim], slice(start, start + a.shapes[a.dim]))
    return Value(a.shapes, tuple(axes))


@rule("split")
def split(walk: Walk, a: SimpleNamespace) -> list[Value]:
    """Split one dimension into ranges; equal ranges stay equal, as the calling code expects."""
    values, start = [], 0
    sizes = {shape[a.dim] for shape in a.shapes}
    if len(sizes) == 1 and len(a.shapes) > 1:
        walk.balance(a.input.axes[a.dim], len(a.shapes))
    for shape in a.shapes:
        axes = list(a.input.axes)
        axes[a.dim] = walk.axes.take(axes[a.dim], slice(start, start + shape[a.dim]))
        values.append(Value(shape, tuple(axes)))
        start += shape[a.dim]
    return values


@rule("unbind")
def unbind(walk: Walk, a: SimpleNamespace) -> list[Value]:
    """Split a dimension into its entries, each of which is used separately."""
    dim = a.dim % len(a.input.shape)
    walk.pin(a.input.axes[dim], because="its entries are used one by one")
    rest = tuple(axis for d, axis in enumerate(a.input.axes) if d != dim)
    return [Value(shape, rest) for shape in a.shapes]


@rule("select")
def select(walk: Walk, a: SimpleNamespace) -> Value:
    """Take one entry of a dimension."""
    dim = a.dim % len(a.input.shape)
    walk.pin(a.input.axes[dim], because="one of its entries is selected by index")
    return Value(a.shapes, tuple(x for d, x in enumerate(a.input.axes) if d != dim))


@rule("index")
def index(walk: Walk, a: SimpleNamespace) -> Value:
    """Look up entries of some dimensions; the others are unchanged."""
    picked = [d for d, x in enumerate(a.indices) if x is not None]
    walk.pin(*(a.input.axes[d] for d in picked), because="its entries are looked up by index")
    for x in a.indices:
        if isinstance(x, Value):
            walk.pin(*x.axes)
    rest = [axis for d, axis in enumerate(a.input.axes) if d not in picked]
    added: list[Axis] = [FIXED] * (len(a.shapes) - len(rest))
    together = picked == list(range(picked[0], picked[-1] + 1))
    at = picked[0] if together else 0
    return Value(a.shapes, (*rest[:at], *added, *rest[at:]))


@rule("embedding")
def embedding(walk: Walk, a: SimpleNamespace) -> Value:
    """Look up rows of a table; its columns are the new channels."""
    walk.pin(a.weight.axes[0], because="its rows are looked up by index")
    walk.makes(a.weight, 1)
    where = [FIXED] * (len(a.shapes) - 1)
    return Value(a.shapes, (*where, zero(a.weight.axes[1], a.weight.is_parameter)))


@rule("embedding_bag")
def embedding_bag(walk: Walk, a: SimpleNamespace) -> Any:
    """Look up rows of a table and add them up."""
    walk.pin(a.weight.axes[0], because="its rows are looked up by index")
    walk.makes(a.weight, 1)
    first = Value(a.shapes[0], (FIXED, zero(a.weight.axes[1], a.weight.is_parameter)))
    return [first, *(None if x is None else Value.fixed(x) for x in a.shapes[1:])]


@rule("pad")
def pad(walk: Walk, a: SimpleNamespace) -> Value:
    """Add entries at the ends of dimensions, which are not channels."""
    axes = list(a.input.axes)
    mode = getattr(a, "mode", "constant")
    value = getattr(a, "value", 0) or 0
    for k in range(len(a.pad) // 2):
        d, (before, after) = len(axes) - 1 - k, a.pad[2 * k : 2 * k + 2]
        if (before or after) and (mode != "constant" or min(before, after) < 0):
            walk.pin(axes[d])
        elif before or after:
            axes[d] = tuple(
                type(c)(np.pad(c.labels, (before, after)), c.is_zero)
                for c in walk.axes.tidy(axes[d])
            )
    if value:
        axes = [zero(axis, False) for axis in axes]
    return Value(a.shapes, tuple(axes))
