"""Layers with weights beside convolutions: Dense, Embedding and norms."""

from __future__ import annotations

from typing import Any

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED
from lilliput.speedup.keras.rules.elementwise import activate
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Value, Walk

_STATISTICS = (
    *("moving_mean", "moving_variance"),
    *("moving_stddev", "renorm_mean", "renorm_stddev"),
)


@rule("Dense")
def dense(walk: Walk, node: Node) -> Any:
    """Contract the last dimension; columns of the kernel are the new channels."""
    value, kernel = walk.input(), walk.parameter("kernel")
    if kernel is None:
        return walk.give_up("it has no kernel of its own")
    walk.same(value.axes[-1], kernel.axes[0])
    made = walk.makes(kernel, 1)
    share(walk, made, "bias")
    result = Value(walk.shape(), (*value.axes[:-1], made))
    return activate(walk, result, node.operation.activation)


def share(walk: Walk, axis: Any, *attributes: str) -> None:
    """Share an axis with variables of one dimension."""
    for attribute in attributes:
        held = walk.parameter(attribute)
        if held is not None:
            walk.same(axis, held.axes[0])


@rule("Embedding")
def embedding(walk: Walk, node: Node) -> Any:
    """Look up rows of a table; its columns are the new channels."""
    table = walk.parameter("embeddings")
    if table is None:
        return walk.give_up("it has no table of its own")
    walk.pin(table.axes[0], because="its rows are looked up by number")
    shape = walk.shape()
    return Value(shape, (*(FIXED,) * (len(shape) - 1), walk.makes(table, 1)))


@rule("BatchNormalization")
def batch_norm(walk: Walk, node: Node) -> Value:
    """Normalize each channel by itself."""
    value = walk.input()
    at = node.operation.axis
    share(walk, value.axes[at], "gamma", "beta", *_STATISTICS)
    others = [x for d, x in enumerate(value.axes) if d != at % len(value.axes)]
    walk.pin(*others, because="statistics are taken over it")
    return value


@rule("LayerNormalization", "RMSNormalization", "GroupNormalization", "UnitNormalization")
def norm(walk: Walk, node: Node) -> Value:
    """Normalize over channels: with fewer of them it would be another function."""
    value = walk.input()
    axis = node.operation.axis
    many = len(value.axes)
    dims = {d % many for d in ([axis] if isinstance(axis, int) else axis)}
    if type(node.operation).__name__ == "GroupNormalization":
        dims = set(range(1, many))
    walk.pin(*(value.axes[d] for d in sorted(dims)), because="a norm is taken over channels")
    for attribute in ("gamma", "beta", "scale"):
        held = walk.parameter(attribute)
        if held is not None:
            walk.pin(*held.axes, because="a norm is taken over channels")
    return value


@rule("Softmax")
def softmax(walk: Walk, node: Node) -> Value:
    """Compare the entries of some dimensions with each other; the others pass."""
    value, axis = walk.input(), node.operation.axis
    dims = [axis] if isinstance(axis, int) else list(axis)
    walk.pin(*(value.axes[d] for d in dims), because="its entries are compared with each other")
    return value
