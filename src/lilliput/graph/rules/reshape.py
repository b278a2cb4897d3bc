"""Ops that only rearrange: views, transpositions, copies and concatenations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np

from lilliput.graph.axes import FIXED, Axis, Column
from lilliput.graph.rules.table import rule
from lilliput.graph.shuffles import find_chain, shuffle
from lilliput.graph.walk import Value, Walk, is_zero


@rule("reshape", "reshape_as", "squeeze", "unsqueeze")
def reshape(walk: Walk, a: SimpleNamespace) -> Value:
    """Merge and split dimensions wherever sizes before and after have the same product."""
    chain = find_chain(walk.op)
    ahead = None if chain is None else shuffle(walk, chain)
    if ahead is not None:
        walk.ahead.update(ahead)
        return ahead[walk.op]
    return regroup(walk, a.input, a.shapes)


def regroup(walk: Walk, value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value in another shape with the same number of elements."""
    axes: list[Axis] = [FIXED] * len(shape)
    for number, (before, after) in enumerate(_blocks(value.shape, shape)):
        sizes = [value.shape[d] for d in before]
        merged = walk.axes.merge([value.axes[d] for d in before], sizes)
        parts = walk.split(merged, [shape[d] for d in after], ("view", number))
        for d, axis in zip(after, parts, strict=True):
            axes[d] = axis
    if value.shape == shape:
        return Value(shape, tuple(axes), value.origin, value.is_parameter)
    return Value(shape, tuple(axes))


def _blocks(a: tuple[int, ...], b: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest runs of dimensions whose sizes multiply to the same number."""
    left = [d for d, n in enumerate(a) if n != 1]
    right = [d for d, n in enumerate(b) if n != 1]
    while left and right:
        before, after = [left.pop(0)], [right.pop(0)]
        while (x := prod(a[d] for d in before)) != (y := prod(b[d] for d in after)):
            (before.append(left.pop(0)) if x < y else after.append(right.pop(0)))
        yield before, after


@rule("permute")
def permute(walk: Walk, a: SimpleNamespace) -> Value:
    """Reorder dimensions."""
    origin = tuple(a.input.origin[d] for d in a.dims) if a.input.origin else ()
    axes = tuple(a.input.axes[d] for d in a.dims)
    return Value(a.shapes, axes, origin, a.input.is_parameter)


@rule("expand")
def expand(walk: Walk, a: SimpleNamespace) -> Value:
    """Repeat dimensions of size one, as often as their reader needs."""
    return _spread(walk, a.input, a.shapes)


def _spread(walk: Walk, value: Value, shape: tuple[int, ...]) -> Value:
    axes = []
    for d, size in enumerate(shape):
        at = d - len(shape) + len(value.shape)
        if at >= 0 and value.shape[at] == size:
            axes.append(value.axes[at])
        else:
            axes.append(walk.fresh(("copies", d), size))
            walk.copies += [column.labels for column in axes[-1]]
    return Value(shape, tuple(axes))


@rule("repeat")
def repeat(walk: Walk, a: SimpleNamespace) -> Value:
    """Put copies of a dimension one after the other."""
    shape = (1,) * (len(a.shapes) - len(a.input.shape)) + a.input.shape
    value = regroup(walk, a.input, shape)
    target = tuple(m if n == 1 else n for n, m in zip(shape, a.shapes, strict=True))
    value = _spread(walk, value, target)
    axes = []
    for axis, n, m in zip(value.axes, target, a.shapes, strict=True):
        axes.append(tuple(Column(np.tile(c.labels, m // n), c.is_zero) for c in axis))
    return Value(a.shapes, tuple(axes))


@rule("repeat_interleave")
def repeat_interleave(walk: Walk, a: SimpleNamespace) -> Value:
    """Put copies of each entry next to it."""
    if not isinstance(a.repeats, int) or a.dim is None:
        result: Value = walk.give_up()
        return result
    dim = a.dim % len(a.shapes)
    shape = a.input.shape
    opened = (*shape[: dim + 1], 1, *shape[dim + 1 :])
    value = regroup(walk, a.input, opened)
    spread = (*opened[: dim + 1], a.repeats, *opened[dim + 2 :])
    return regroup(walk, _spread(walk, value, spread), a.shapes)


@rule("cat")
def cat(walk: Walk, a: SimpleNamespace) -> Value:
    """Join one dimension; the others lose the same indices."""
    values = [x for x in a.tensors if x.shape != (0,)]
    dim = a.dim % len(a.shapes)
    axes = []
    for d in range(len(a.shapes)):
        here = [value.axes[d] for value in values]
        if d == dim:
            axes.append(walk.axes.join(here, [value.shape[d] for value in values]))
        else:
            walk.same(*here)
            axes.append(_all_zero(here))
    return Value(a.shapes, tuple(axes))


@rule("stack")
def stack(walk: Walk, a: SimpleNamespace) -> Value:
    """Join along a new dimension."""
    dim = a.dim % len(a.shapes)
    axes = []
    for d in range(len(a.tensors[0].shape)):
        here = [value.axes[d] for value in a.tensors]
        walk.same(*here)
        axes.append(_all_zero(here))
    axes.insert(dim, FIXED)
    return Value(a.shapes, tuple(axes))


def _all_zero(axes: list[Axis]) -> Axis:
    together = all(is_zero(axis) for axis in axes)
    return tuple(replace(c, is_zero=together) for c in axes[0])


@rule("flip")
def flip(walk: Walk, a: SimpleNamespace) -> Value:
    """Reverse dimensions."""
    axes = list(a.input.axes)
    for d in a.dims:
        axes[d] = walk.axes.take(axes[d], slice(None, None, -1))
    return Value(a.shapes, tuple(axes))
