"""Operations of ``keras.ops`` that make one number of a whole dimension."""

from __future__ import annotations

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED, Axis
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Value, Walk


@rule(*(f"ops.{name}" for name in ("Mean", "Sum", "Max", "Min", "Amax", "Amin", "Var")))
def reduction(walk: Walk, node: Node) -> Value:
    """Drop or shorten dimensions; channels in them stay, the others pass."""
    value, axis, count = walk.input(), node.operation.axis, len(walk.input().axes)
    dims = range(count) if axis is None else [axis] if isinstance(axis, int) else axis
    reduced = {d % count for d in dims}
    walk.pin(*(value.axes[d] for d in sorted(reduced)), because="one number is made of all of them")
    axes: list[Axis] = []
    for d, held in enumerate(value.axes):
        if d not in reduced:
            axes.append(held)
        elif node.operation.keepdims:
            axes.append(FIXED)
    return Value(walk.shape(), tuple(axes))


@rule("ops.Softmax", "ops.LogSoftmax")
def softmax(walk: Walk, node: Node) -> Value:
    """Compare the entries of a dimension with each other; the others pass."""
    value, axis = walk.input(), node.operation.axis
    dims = range(len(value.axes)) if axis is None else [axis] if isinstance(axis, int) else axis
    walk.pin(*(value.axes[d] for d in dims), because="its entries are compared with each other")
    return value
