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
    bottom, top = _bounds(scale, low, high, zero_point)
    return with_backward(_round, _inside, tensor, scale, bottom, top)


def round_to_grid(tensor: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Return a tensor rounded to a grid that covers it: the gradient passes everywhere."""

    def passes(upstream: Tensor, output: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return upstream, ops.zeros_like(s)

    return with_backward(lambda x, s: _round(x, s, low, high), passes, tensor, scale)


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


def _bounds(scale: Tensor, low: int, high: int, zero_point: Tensor | None) -> tuple[Tensor, Tensor]:
    zero = ops.zeros_like(scale) if zero_point is None else ops.convert_to_tensor(zero_point)
    return low - zero, high - zero


def _round(tensor: Tensor, scale: Tensor, bottom: Any, top: Any) -> Tensor:
    return ops.clip(ops.round(tensor * (1 / scale)), bottom, top) * scale


def _inside(
    upstream: Tensor, output: Tensor, tensor: Tensor, scale: Tensor, bottom: Tensor, top: Tensor
) -> tuple[Tensor, ...]:
    low, high = (bottom - 0.5) * scale, (top + 0.5) * scale
    inside = ops.logical_and(tensor >= low, tensor <= high)
    passed = ops.where(inside, upstream, ops.zeros_like(upstream))
    return passed, ops.zeros_like(scale), ops.zeros_like(bottom), ops.zeros_like(top)
