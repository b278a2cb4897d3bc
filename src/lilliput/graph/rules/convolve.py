"""Convolutions: plain, depthwise, grouped and transposed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.standardize import explain_standardized, source_of
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Ragged, Value, Walk, zero


@rule("conv")
def convolution(walk: Walk, a: SimpleNamespace) -> Value:
    """Filters are the new channels; inputs per group are unified with dimension 1 of the weight."""
    channels, weight = a.input.axes[-_dims(a) - 1], a.weight
    if not weight.origin:
        _computed(walk, weight)
    if a.groups == 1:
        walk.same(channels, weight.axes[1])
    elif weight.shape[1] == 1:  # depthwise: an input is removed with all the filters that read it
        walk.same(_each(channels, weight.shape[0] // a.groups), weight.axes[0])
    else:
        _grouped(walk, channels, a)
    walk.makes(weight, 0)
    return _result(walk, a, weight.axes[0])


def _computed(walk: Walk, weight: Value) -> None:
    """Find the parameter behind a computed weight: its filters produce the channels."""
    tensor = walk.op.arguments["weight"]
    explain_standardized(walk, tensor)
    name = source_of(tensor, weight.shape[0])
    if name is not None:
        walk.outputs.add((name, 0))


def _each(axis: Axis, repeats: int) -> Axis:
    if repeats == 1:
        return axis
    return tuple(type(c)(np.repeat(c.labels, repeats), c.is_zero) for c in axis)


def _grouped(walk: Walk, channels: Axis, a: SimpleNamespace) -> None:
    """Let each group remove different channels, as long as all keep equally many.

    If the channels are already a product, the same positions are removed in every group.
    """
    weight, groups = a.weight, a.groups
    columns = walk.axes.tidy(channels)
    held = weight.origin[:2] if weight.is_parameter else (None, None)
    if len(columns) == 1 and held[0] and held[1] and len(walk.axes.tidy(weight.axes[0])) < 2:
        walk.balance(channels, groups)
        walk.balance(weight.axes[0], groups)
        rows = columns[0].labels.reshape(groups, -1)
        (name, dim), (_, filters) = held[1], held[0]
        known = walk.ragged.get(name)
        if known is not None:
            walk.labels.unite(known.rows.ravel(), rows.ravel(), walk.axes.reason)
            walk.axes.meetings.append((known.trail, columns[0].trail))
        walk.ragged[name] = Ragged(rows, dim, filters, columns[0].trail)
        return
    inner = walk.split(channels, (groups, weight.shape[1]), "in")
    outer = walk.split(weight.axes[0], (groups, weight.shape[0] // groups), "out")
    walk.same(inner[0], outer[0])
    walk.same(inner[1], weight.axes[1])


@rule("conv_depthwise")
def depthwise(walk: Walk, a: SimpleNamespace) -> Value:
    """Each channel produces several: the weight is (channels, outputs of each, window)."""
    channels, weight = a.input.axes[-_dims(a) - 1], a.weight
    walk.same(channels, weight.axes[0])
    walk.pin(weight.axes[1], because="every channel is repeated equally often")
    walk.makes(weight, 0)
    return _result(walk, a, _each(weight.axes[0], weight.shape[1]))


@rule("conv_transpose")
def transposed(walk: Walk, a: SimpleNamespace) -> Value:
    """As above, with inputs in dimension 0 of the weight and filters in dimension 1."""
    channels, weight = a.input.axes[-_dims(a) - 1], a.weight
    walk.same(channels, weight.axes[0])
    if a.groups == 1:
        walk.makes(weight, 1)
        return _result(walk, a, weight.axes[1])
    if weight.shape[1] == 1 and weight.shape[0] == a.groups:
        walk.makes(weight, 0)
        return _result(walk, a, weight.axes[0])
    return _result(walk, a, _grouped_transposed(walk, channels, a))


def _grouped_transposed(walk: Walk, channels: Axis, a: SimpleNamespace) -> Axis:
    """Remove the same positions in every group: dimension 1 of the weight is shared by all groups."""
    weight, groups = a.weight, a.groups
    rows, _ = walk.split(channels, (groups, weight.shape[0] // groups), "in")
    walk.pin(rows, because="the groups of a transposed convolution stay")
    walk.makes(weight, 1)
    return walk.axes.merge([FIXED, weight.axes[1]], (groups, weight.shape[1]))


def _result(walk: Walk, a: SimpleNamespace, made: Axis) -> Value:
    dims = _dims(a)
    walk.pin(*a.input.axes[-dims:], *a.weight.axes[2:], because="a window slides over it")
    if a.bias is not None:
        walk.same(made, a.bias.axes[0])
    masked = all(x is None or x.is_parameter for x in (a.weight, a.bias))
    axes = [*a.input.axes]
    axes[-dims - 1] = zero(made, masked)
    return Value(a.shapes, tuple(axes))


def _dims(a: SimpleNamespace) -> int:
    return len(a.weight.shape) - 2
