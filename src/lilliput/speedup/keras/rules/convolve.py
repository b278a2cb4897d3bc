"""Convolutions: plain, grouped, transposed, depthwise and separable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED, Axis
from lilliput.speedup.keras.rules.elementwise import activate
from lilliput.speedup.keras.rules.layers import share
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Ragged, Value, Walk


@rule("Conv1D", "Conv2D", "Conv3D")
def convolution(walk: Walk, node: Node) -> Any:
    """Filters, last in the kernel, are the new channels; inputs of a group come before them."""
    channels, kernel, groups = (
        _channels(walk, node),
        _kernel(walk, "kernel"),
        node.operation.groups,
    )
    if kernel is None:
        return walk.give_up("it has no kernel of its own")
    if groups == 1:
        walk.same(channels, kernel.axes[-2])
    elif kernel.shape[-2] == 1:  # depthwise: an input goes with all the filters that read it
        walk.same(_each(channels, int(kernel.shape[-1] or 0) // groups), kernel.axes[-1])
    else:
        _grouped(walk, channels, kernel, groups)
    return _result(walk, node, walk.makes(kernel, -1))


def _kernel(walk: Walk, attribute: str) -> Value | None:
    kernel = walk.parameter(attribute)
    if kernel is not None:
        walk.pin(*kernel.axes[:-2], because="a window slides over it")
    return kernel


def _each(axis: Axis, repeats: int) -> Axis:
    return tuple(replace(column, labels=np.repeat(column.labels, repeats)) for column in axis)


def _grouped(walk: Walk, channels: Axis, kernel: Value, groups: int) -> None:
    """Let each group choose its own channels, as long as all keep equally many.

    Where the channels are a product already, the same positions are removed in every group.
    """
    columns, made = walk.axes.tidy(channels), kernel.axes[-1]
    many = len(kernel.shape)
    if len(columns) == 1 and len(walk.axes.tidy(made)) < 2:
        walk.balance(channels, groups)
        walk.balance(made, groups)
        rows = columns[0].labels.reshape(groups, -1)
        known = walk.ragged.get(kernel.name)
        if known is not None:
            walk.labels.unite(known.rows.ravel(), rows.ravel(), walk.axes.reason)
        walk.ragged[kernel.name] = Ragged(rows, many - 2, many - 1)
        return
    inputs, filters = int(kernel.shape[-2] or 0), int(kernel.shape[-1] or 0)
    inner = walk.split(channels, (groups, inputs), "in")
    outer = walk.split(made, (groups, filters // groups), "out")
    walk.same(inner[0], outer[0])
    walk.same(inner[1], kernel.axes[-2])


@rule("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
def transposed(walk: Walk, node: Node) -> Any:
    """As above, with inputs last in the kernel and filters before them."""
    kernel = _kernel(walk, "kernel")
    if kernel is None:
        return walk.give_up("it has no kernel of its own")
    walk.same(_channels(walk, node), kernel.axes[-1])
    return _result(walk, node, walk.makes(kernel, -2))


@rule("DepthwiseConv1D", "DepthwiseConv2D")
def depthwise(walk: Walk, node: Node) -> Any:
    """Each input channel goes with all the outputs that are made of it."""
    kernel = _kernel(walk, "kernel")
    if kernel is None:
        return walk.give_up("it has no kernel of its own")
    return _result(walk, node, _apart(walk, node, kernel))


@rule("SeparableConv1D", "SeparableConv2D")
def separable(walk: Walk, node: Node) -> Any:
    """A depthwise convolution, and one of size 1 behind it."""
    apart, mixing = _kernel(walk, "depthwise_kernel"), _kernel(walk, "pointwise_kernel")
    if apart is None or mixing is None:
        return walk.give_up("it has no kernels of its own")
    walk.same(_apart(walk, node, apart), mixing.axes[-2])
    return _result(walk, node, walk.makes(mixing, -1))


def _apart(walk: Walk, node: Node, kernel: Value) -> Axis:
    """Return the channels that a depthwise kernel makes."""
    walk.same(_channels(walk, node), kernel.axes[-2])
    walk.pin(kernel.axes[-1], because="every channel is multiplied as often")
    return _each(walk.makes(kernel, -2), int(kernel.shape[-1] or 0))


def channel_dim(node: Node, count: int) -> int:
    """Return the dimension of a layer's input that counts channels, of ``count``."""
    return 1 if getattr(node.operation, "data_format", "") == "channels_first" else count - 1


def _channels(walk: Walk, node: Node) -> Axis:
    value = walk.input()
    return value.axes[channel_dim(node, len(value.axes))]


def _result(walk: Walk, node: Node, made: Axis) -> Value:
    value, shape = walk.input(), walk.shape()
    at = channel_dim(node, len(shape))
    space = [x for d, x in enumerate(value.axes) if d not in (0, at)]
    walk.pin(*space, because="a window slides over it")
    share(walk, made, "bias")
    axes: list[Axis] = [value.axes[0], *(FIXED,) * (len(shape) - 1)]
    axes[at] = made
    return activate(walk, Value(shape, tuple(axes)), node.operation.activation)
