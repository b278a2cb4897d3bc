"""Operations that only rearrange: reshapes, transpositions, copies and concatenations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED, Axis
from lilliput.speedup.keras.rules.elementwise import has_array
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Shape, Value, Walk


@rule("Flatten")
def flatten(walk: Walk, node: Node) -> Any:
    """Put all dimensions but the batch into one, channels last."""
    value = walk.input()
    if node.operation.data_format == "channels_first" and len(value.shape) > 1:
        order = [0, *range(2, len(value.shape)), 1]
        value = _permuted(value, order)
    return regroup(walk, value, walk.shape())


@rule("Reshape")
def reshape(walk: Walk, node: Node) -> Any:
    """Merge and split dimensions, wherever sizes before and after have the same product."""
    made = regroup(walk, walk.input(), walk.shape())
    if isinstance(made, Value):
        # The target is written in the layer, and holds for each of its calls.
        walk.same_axes(walk.reshaped.setdefault(id(node.operation), made), made)
    return made


@rule("ops.Reshape")
def reshape_operation(walk: Walk, node: Node) -> Any:
    """Do the same, the batch included."""
    return regroup(walk, walk.input(), walk.shape())


@rule("ops.Squeeze", "ops.ExpandDims")
def resize(walk: Walk, node: Node) -> Any:
    """Add or drop dimensions of size one."""
    return regroup(walk, walk.input(), walk.shape())


def regroup(walk: Walk, value: Value, shape: Shape) -> Any:
    """Return a value in another shape of as many elements; the batch stays first."""
    if value.shape[:1] != shape[:1]:
        return walk.give_up("the batch is mixed with other dimensions")
    before, after = value.shape[1:], shape[1:]
    left = [n for n in before if n is not None]
    right = [n for n in after if n is not None]
    if len(left) < len(before) or len(right) < len(after) or prod(left) != prod(right):
        return walk.give_up("some sizes are not known")
    axes: list[Axis] = [FIXED] * len(shape)
    axes[0] = value.axes[0]
    for number, (ours, theirs) in enumerate(_blocks(left, right)):
        merged = walk.axes.merge([value.axes[1 + d] for d in ours], [left[d] for d in ours])
        parts = walk.split(merged, [right[d] for d in theirs], ("view", number))
        for d, axis in zip(theirs, parts, strict=True):
            axes[1 + d] = axis
    return Value(shape, tuple(axes))


def _blocks(a: list[int], b: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest runs of dimensions whose sizes multiply to the same number."""
    left = [d for d, n in enumerate(a) if n != 1]
    right = [d for d, n in enumerate(b) if n != 1]
    while left and right:
        before, after = [left.pop(0)], [right.pop(0)]
        while (x := prod(a[d] for d in before)) != (y := prod(b[d] for d in after)):
            (before.append(left.pop(0)) if x < y else after.append(right.pop(0)))
        yield before, after


@rule("Permute")
def permute(walk: Walk, node: Node) -> Value:
    """Reorder dimensions."""
    return _permuted(walk.input(), [0, *node.operation.dims])


@rule("ops.Transpose")
def transpose(walk: Walk, node: Node) -> Value:
    """Reorder dimensions, all of them reversed if no order is given."""
    value = walk.input()
    order = range(len(value.shape))[::-1] if node.operation.axes is None else node.operation.axes
    return _permuted(value, [d % len(value.shape) for d in order])


def _permuted(value: Value, order: list[int]) -> Value:
    shape = tuple(value.shape[d] for d in order)
    return Value(shape, tuple(value.axes[d] for d in order))


@rule("RepeatVector")
def repeat(walk: Walk, node: Node) -> Value:
    """Copy vectors along a new dimension."""
    value = walk.input()
    return Value(walk.shape(), (value.axes[0], FIXED, value.axes[1]))


@rule("Concatenate", "ops.Concatenate")
def concatenate(walk: Walk, node: Node) -> Any:
    """Join one dimension; the others lose the same indices."""
    values, shape = walk.inputs(), walk.shape()
    at = node.operation.axis % len(shape)
    sizes = [size for value in values if (size := value.shape[at]) is not None]
    if has_array(node) or len(sizes) < len(values):
        return walk.give_up("some sizes are not known")
    axes = []
    for d in range(len(shape)):
        here = [value.axes[d] for value in values]
        if d == at:
            axes.append(walk.axes.join(here, sizes))
        else:
            walk.same(*here)
            axes.append(here[0])
    return Value(shape, tuple(axes))
