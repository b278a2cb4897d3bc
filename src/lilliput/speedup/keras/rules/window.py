"""Pooling, padding, cropping and resampling: space changes, channel by channel."""

from __future__ import annotations

from lilliput.backends.keras.graph import Node
from lilliput.graph.axes import FIXED, Axis
from lilliput.speedup.keras.rules.convolve import channel_dim
from lilliput.speedup.keras.rules.table import rule
from lilliput.speedup.keras.walk import Value, Walk

_POOLS = [f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3)]
_FRAMES = [f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)]


@rule(*_POOLS, *(f"Adaptive{name}" for name in _POOLS), *_FRAMES)
def window(walk: Walk, node: Node) -> Value:
    """Work on space, channel by channel."""
    value, shape = walk.input(), walk.shape()
    at = channel_dim(node, len(shape))
    axes: list[Axis] = [value.axes[0], *(FIXED,) * (len(shape) - 1)]
    axes[at] = value.axes[at]
    _pin_space(walk, value, at)
    return Value(shape, tuple(axes))


@rule(*(f"Global{name}" for name in _POOLS))
def whole(walk: Walk, node: Node) -> Value:
    """Make one number of each channel."""
    value, shape = walk.input(), walk.shape()
    at = channel_dim(node, len(value.axes))
    _pin_space(walk, value, at)
    axes: list[Axis] = [FIXED] * len(shape)
    axes[at if node.operation.keepdims else 1] = value.axes[at]
    return Value(shape, tuple(axes))


def _pin_space(walk: Walk, value: Value, channels: int) -> None:
    space = [x for d, x in enumerate(value.axes) if d not in (0, channels)]
    walk.pin(*space, because="a window slides over it")
