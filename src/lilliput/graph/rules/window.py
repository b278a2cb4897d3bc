"""Pooling, resampling and the shuffles between channels and space."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import FIXED
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk


@rule("window")
def window(walk: Walk, a: SimpleNamespace) -> Any:
    """Work on space, one channel at a time."""
    first = a.shapes if isinstance(a.shapes, tuple) else a.shapes[0]
    kept = tuple(n == m for n, m in zip(a.input.shape, first, strict=True))
    leading = len(first) - a.space
    walk.pin(*a.input.axes[leading:], because="a window slides over it")
    axes = tuple(axis if d < leading and kept[d] else FIXED for d, axis in enumerate(a.input.axes))
    if isinstance(a.shapes, tuple):
        return Value(first, axes)
    return [Value(shape, axes) for shape in a.shapes]


@rule("pixel_shuffle")
def pixel_shuffle(walk: Walk, a: SimpleNamespace) -> Value:
    """Turn r × r channels into space: they are removed together."""
    square = a.upscale_factor**2
    channels = a.input.shape[-3] // square
    parts = walk.split(a.input.axes[-3], (channels, square))
    walk.pin(parts[1], *a.input.axes[-2:], because="these channels become space")
    return Value(a.shapes, (*a.input.axes[:-3], parts[0], FIXED, FIXED))


@rule("pixel_unshuffle")
def pixel_unshuffle(walk: Walk, a: SimpleNamespace) -> Value:
    """Turn space into channels."""
    walk.pin(*a.input.axes[-2:], because="it becomes channels")
    sizes = (a.input.shape[-3], a.downscale_factor**2)
    merged = walk.axes.merge([a.input.axes[-3], FIXED], sizes)
    return Value(a.shapes, (*a.input.axes[:-3], merged, FIXED, FIXED))


@rule("channel_shuffle")
def channel_shuffle(walk: Walk, a: SimpleNamespace) -> Value:
    """Transpose groups and channels within a group."""
    sizes = (a.groups, a.input.shape[1] // a.groups)
    mixed = walk.shuffle(a.input.axes[1], sizes, (1, 0))
    if mixed is not None:
        return Value(a.shapes, (a.input.axes[0], mixed, *a.input.axes[2:]))
    rows, columns = walk.split(a.input.axes[1], sizes)
    merged = walk.axes.merge([columns, rows], sizes[::-1])
    return Value(a.shapes, (a.input.axes[0], merged, *a.input.axes[2:]))


@rule("im2col")
def im2col(walk: Walk, a: SimpleNamespace) -> Value:
    """Put each window into the channel dimension."""
    walk.pin(*a.input.axes[-2:], because="a window slides over it")
    sizes = (a.input.shape[-3], prod(a.kernel_size))
    merged = walk.axes.merge([a.input.axes[-3], FIXED], sizes)
    return Value(a.shapes, (*a.input.axes[:-3], merged, FIXED))


@rule("col2im")
def col2im(walk: Walk, a: SimpleNamespace) -> Value:
    """Take windows out of the channel dimension."""
    square = prod(a.kernel_size)
    parts = walk.split(a.input.axes[-2], (a.input.shape[-2] // square, square))
    walk.pin(parts[1], a.input.axes[-1], because="these channels become space")
    return Value(a.shapes, (*a.input.axes[:-2], parts[0], FIXED, FIXED))
