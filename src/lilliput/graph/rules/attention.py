"""Scaled dot-product attention: heads are removed as a whole, positions are kept."""

from __future__ import annotations

from types import SimpleNamespace

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.contract import contract
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, is_zero, zero


@rule("attention")
def attention(walk: Walk, a: SimpleNamespace) -> Value:
    """Return ``softmax(q kᵀ + mask) v``."""
    query, key, value = a.query, a.key, a.value
    contract(walk, query, -1, key, -1)
    walk.same(key.axes[-2], value.axes[-2])
    walk.pin(key.axes[-2], because="a softmax runs over it")
    for axis in (query.axes[-1], key.axes[-1], value.axes[-1]):
        walk.features += [column.labels for column in walk.axes.tidy(axis)]
    count = len(a.shapes)
    axes: list[Axis] = []
    for d in range(count - 2):
        axes.append(_heads(walk, a, d - count, a.shapes[d]))
    if a.attn_mask is not None:
        mask = a.attn_mask
        targets = [*axes, query.axes[-2], key.axes[-2]]
        for d in range(1, len(mask.shape) + 1):
            if mask.shape[-d] > 1:
                walk.same(targets[-d], mask.axes[-d])
    return Value(a.shapes, (*axes, query.axes[-2], value.axes[-1]))


def _heads(walk: Walk, a: SimpleNamespace, d: int, size: int) -> Axis:
    """Return the axis of a batch or head dimension; a key head may serve several query heads."""
    axes = []
    for operand in (a.query, a.key, a.value):
        if len(operand.shape) < -d or (operand.shape[d] == 1 and size > 1):
            continue
        axis = operand.axes[d]
        if operand.shape[d] != size:
            repeats = size // operand.shape[d]
            copies = walk.fresh(("copies", d), repeats)
            walk.copies += [column.labels for column in copies]
            axis = walk.axes.merge([axis, copies], [operand.shape[d], repeats])
        axes.append(axis)
    walk.same(*axes)
    return zero(axes[0], is_zero(axes[-1])) if axes else FIXED
