"""Fake quantization with its gradient, on TensorFlow and JAX.

The forward pass is ``clip(round(x / s), low - z, high - z) * s``, the same numbers as on torch. The gradient
passes where ``x`` is inside the range.
"""

from __future__ import annotations

from typing import Any

from keras import ops

from lilliput.frameworks.keras.grad import with_backward
from lilliput.frameworks.keras.variables import tensor_of

Tensor = Any


def fake_quantize(
    tensor: Tensor, scale: Tensor, low: int, high: int, zero_point: Tensor | None = None
) -> Tensor:
    """Return a tensor rounded to a grid; the gradient passes only inside the range."""
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
    gradient_scale: Any,
    zero_point: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """Return a tensor rounded to a learned grid (LSQ, LSQ+), as on torch."""
    scale = tensor_of(scale)
    base = ops.zeros_like(scale) if offset is None else tensor_of(offset)
    if offset is not None:
        still = ops.stop_gradient(scale), ops.stop_gradient(base)
        zero_point = offset_to_zero_point(*still, low, high)
    zero = ops.zeros_like(scale) if zero_point is None else zero_point
    share = ops.cast(gradient_scale, scale.dtype)

    def forward(x: Tensor, s: Tensor, z: Tensor, b: Tensor, k: Tensor) -> tuple[Tensor, Any]:
        steps = x * (1 / s)
        rounded = ops.round(steps)
        clipped = ops.clip(rounded, low - z, high - z)
        inside = ops.equal(rounded, clipped)
        # The derivative with respect to the scale; clipped values are relative to the offset.
        slope = clipped - ops.where(inside, steps, b / s)
        return clipped * s, (inside, slope, s, k)

    def backward(upstream: Tensor, kept: Any) -> tuple[Tensor, ...]:
        inside, slope, s, k = kept
        passed = ops.where(inside, upstream, ops.cast(0, upstream.dtype))
        for_scale = _sum_to(upstream * slope, s) * k
        for_base = _sum_to(upstream - passed, s) * k
        return passed, for_scale, ops.zeros_like(s), for_base, ops.zeros_like(k)

    return with_backward(forward, backward, tensor, scale, zero, base, share)


def _sum_to(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the sum over all entries that share an entry of ``like``."""
    lead = len(tensor.shape) - len(like.shape)
    shared = [i for i in range(len(tensor.shape)) if i < lead or like.shape[i - lead] == 1]
    return ops.reshape(ops.sum(tensor, axis=shared) if shared else tensor, like.shape)


def offset_to_zero_point(scale: Tensor, offset: Tensor, low: int, high: int) -> Tensor:
    """Return the zero point for which the lowest integer represents ``offset``, approximately."""
    return ops.clip(ops.round(low - offset / scale), low, high)
