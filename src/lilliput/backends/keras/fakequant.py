"""Fake quantization with its gradient, on TensorFlow and JAX.

Forward is ``clip(round(x / s), low - z, high - z) * s``, the same numbers as on torch. The gradient
passes where ``x`` is inside the range.
"""

from __future__ import annotations

from typing import Any

from keras import ops

from lilliput.backends.keras.grad import with_backward

Tensor = Any


def fake_quantize(
    tensor: Tensor, scale: Tensor, low: int, high: int, zero_point: Tensor | None = None
) -> Tensor:
    """Return a tensor rounded to a grid; the gradient passes inside the range and nowhere else."""
    zero = ops.zeros_like(scale) if zero_point is None else zero_point

    def forward(x: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, Any]:
        rounded = ops.round(x * (1 / s))
        clipped = ops.clip(rounded, low - z, high - z)
        return clipped * s, (ops.equal(rounded, clipped), s)

    def backward(upstream: Tensor, kept: Any) -> tuple[Tensor, ...]:
        inside, s = kept
        none = ops.zeros_like(s)
        return ops.where(inside, upstream, ops.cast(0, upstream.dtype)), none, none

    return with_backward(forward, backward, tensor, scale, zero)


def round_to_grid(tensor: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Return a tensor rounded to a grid that covers it: the gradient passes everywhere."""

    def forward(x: Tensor, s: Tensor) -> tuple[Tensor, Any]:
        return ops.clip(ops.round(x * (1 / s)), low, high) * s, s

    def backward(upstream: Tensor, s: Any) -> tuple[Tensor, ...]:
        return upstream, ops.zeros_like(s)

    return with_backward(forward, backward, tensor, scale)


def learned_fake_quantize(
    tensor: Tensor,
    scale: Tensor,
    low: int,
    high: int,
    gradient_scale: float,
    zero_point: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """Return a tensor rounded to a grid whose scale is learned; there is none of this on Keras yet."""
    raise NotImplementedError("learned scales are for torch models.")


def offset_to_zero_point(scale: Tensor, offset: Tensor, low: int, high: int) -> Tensor:
    """Return the zero point with which the lowest integer stands for ``offset``, about."""
    return ops.clip(ops.round(low - offset / scale), low, high)
