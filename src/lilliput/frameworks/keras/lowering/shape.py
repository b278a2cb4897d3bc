"""Layers and operations that move entries, reduce dimensions, or slide windows over space."""

from __future__ import annotations

from math import prod
from typing import Any

from lilliput.frameworks.keras.lowering.elementwise import has_array
from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, lowering
from lilliput.graph.ir import Tensor

_POOLS = [f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3)]
_FRAMES = [f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)]
_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "Max": "amax", "Min": "amin", "Var": "var"}
_REDUCTIONS |= {"Amax": "amax", "Amin": "amin"}


@lowering("Flatten")
def flatten(writer: Writer) -> Any:
    """Flatten all dimensions but the batch, channels last."""
    x = writer.input()
    is_first = writer.layer.data_format == "channels_first" and len(x.shape) > 1
    return _reshape(writer, writer.move(x, 1, -1) if is_first else x)


@lowering("Reshape", "ops.Reshape")
def reshape(writer: Writer) -> Any:
    """Merge and split dimensions."""
    return _reshape(writer, writer.input())


def _reshape(writer: Writer, x: Tensor) -> Any:
    shapes = writer.calls.shapes
    before, after = shapes[writer.node.inputs[0]], shapes[writer.node.outputs[0]]
    if before[:1] != after[:1]:
        raise UnknownError("the batch is mixed with other dimensions")
    if writer.is_open() or prod(x.shape) != prod(writer.shape()):
        raise UnknownError("some sizes are unknown")
    return writer.op("reshape", writer.shape(), input=x)


@lowering("ops.Squeeze", "ops.ExpandDims")
def resize(writer: Writer) -> Any:
    """Add or drop dimensions of size one."""
    before, after = writer.input().shape, writer.shape()
    name = "squeeze" if len(after) < len(before) else "unsqueeze"
    return writer.op(name, after, input=writer.input())


@lowering("Permute")
def permute(writer: Writer) -> Any:
    """Reorder dimensions."""
    return writer.permute(writer.input(), [0, *writer.layer.dims])


@lowering("ops.Transpose")
def transpose(writer: Writer) -> Any:
    """Reorder dimensions, all of them reversed if no order is given."""
    axes, count = writer.layer.axes, len(writer.input().shape)
    return writer.permute(writer.input(), range(count)[::-1] if axes is None else axes)


@lowering("RepeatVector")
def repeat(writer: Writer) -> Any:
    """Copy vectors along a new dimension, a fixed number of times."""
    x, shape = writer.input(), writer.shape()
    opened = writer.op("unsqueeze", (x.shape[0], 1, x.shape[1]), input=x)
    made = writer.op("expand", shape, input=opened)
    return writer.op("stays", shape, input=made, dims=[1], because="they are copies")


@lowering("Concatenate", "ops.Concatenate")
def concatenate(writer: Writer) -> Any:
    """Join one dimension; the others lose the same indices."""
    shape = writer.shape()
    at = writer.layer.axis % len(shape)
    shapes = [writer.calls.shapes[number] for number in writer.node.inputs]
    if has_array(writer) or any(x[at] is None for x in shapes):
        raise UnknownError("some sizes are unknown")
    return writer.op("cat", shape, tensors=writer.inputs(), dim=at)


@lowering(*(f"ops.{name}" for name in _REDUCTIONS))
def reduction(writer: Writer) -> Any:
    """Drop or shorten dimensions."""
    x, layer = writer.input(), writer.layer
    axis = layer.axis if layer.axis is not None else range(len(x.shape))
    dims = [axis] if isinstance(axis, int) else list(axis)
    name = _REDUCTIONS[type(layer).__name__]
    return writer.op(name, writer.shape(), input=x, dim=dims, keepdim=bool(layer.keepdims))


@lowering("Softmax", "ops.Softmax", "ops.LogSoftmax")
def softmax(writer: Writer) -> Any:
    """Compare the entries of some dimensions with each other; the others are unchanged."""
    axis = writer.layer.axis
    dims = [axis] if isinstance(axis, int) else None if axis is None else list(axis)
    return writer.op("softmax", writer.shape(), input=writer.input(), dim=dims)


@lowering(*_POOLS, *(f"Adaptive{name}" for name in _POOLS), *_FRAMES)
def window(writer: Writer) -> Any:
    """Work on space, one channel at a time."""
    x, shape = writer.channels_first(writer.input()), writer.shape()
    is_first = writer.layer.data_format == "channels_first"
    space = shape[2:] if is_first else shape[1:-1]
    made = writer.op("window", (*x.shape[:2], *space), input=x, space=len(space))
    return writer.channels_back(made)


@lowering(*(f"Global{name}" for name in _POOLS))
def whole(writer: Writer) -> Any:
    """Reduce each channel to one number."""
    x, layer = writer.input(), writer.layer
    at = 1 if layer.data_format == "channels_first" else len(x.shape) - 1
    dims = [d for d in range(1, len(x.shape)) if d != at]
    name = "amax" if "Max" in type(layer).__name__ else "mean"
    return writer.op(name, writer.shape(), input=x, dim=dims, keepdim=bool(layer.keepdims))
