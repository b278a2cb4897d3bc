"""Weights as integers on their grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lilliput.errors import ExportError
from lilliput.frameworks.exporting.simulation import Array, Placement, to_array


def spread(
    values: Array, shape: tuple[int, ...], axis: int | None, block_size: int | None = None
) -> Array:
    """Return scales or zero points in a shape that broadcasts with ``shape``.

    Parameters
    ----------
    values : array
        One for all, one per entry of ``axis``, or with ``block_size`` one per block of that axis.
    """
    if axis is None:
        return values
    if block_size is not None:
        kept = (*[slice(None)] * axis, slice(shape[axis]))
        return np.asarray(np.repeat(values, block_size, axis=axis)[kept])
    return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])


class Scaled:
    """Integers with scales and zero points; a base class of dataclasses with these fields."""

    integers: Array
    scale: Array
    zero_point: Array
    axis: int | None
    block_size: int | None

    def spread(self, values: Array) -> Array:
        """Return scales or zero points in a shape that broadcasts with the integers."""
        return spread(values, self.integers.shape, self.axis, self.block_size)

    def reals(self) -> Array:
        """Return the real values represented by the integers."""
        steps = (self.integers - self.spread(self.zero_point)).astype(self.scale.dtype)
        return np.asarray(steps * self.spread(self.scale))


@dataclass(frozen=True, eq=False)
class OnGrid(Scaled):
    """The integers of a weight, with its scales and zero points; ``axis`` as in its grid."""

    integers: Array
    scale: Array
    zero_point: Array
    axis: int | None
    block_size: int | None


def on_grid(placement: Placement) -> OnGrid:
    """Return the integers of the weight that a layer uses, computed on first use.

    Raises
    ------
    ExportError
        If the weight is not on the grid that its quantizer reports.
    """
    if placement.found is None:
        placement.found = _found(placement)
    found: OnGrid = placement.found
    return found


def _found(placement: Placement) -> OnGrid:
    if placement.qparams is None:
        raise ExportError(f"layer {placement.wrapper.name!r}: its weight has no integer grid.")
    grid = placement.qparams.grid
    weight = placement.weight().astype(np.float32, copy=False)
    scale = to_array(placement.qparams.scale).astype(np.float32)
    zero = to_array(placement.qparams.zero_point).astype(np.int32)
    zero = np.array(np.broadcast_to(zero, scale.shape))
    axis = None if grid.axis is None else grid.axis % weight.ndim
    steps, zeros = (spread(x, weight.shape, axis, grid.group_size) for x in (scale, zero))
    # A float has 24 bits, so a quotient of 16 bits is rounded correctly.
    precise = weight if grid.bits <= 16 else weight.astype(np.float64)
    levels = np.asarray(precise / steps)
    np.rint(levels, out=levels)
    np.clip(levels, grid.low - zeros, grid.high - zeros, out=levels)
    integers = levels.astype(np.int32)
    integers += zeros
    _check(placement, weight, levels.astype(np.float32, copy=False), steps)
    return OnGrid(integers, scale, zero, axis, grid.group_size)


def _check(placement: Placement, weight: Array, levels: Array, steps: Array) -> None:
    """Raise if the integers, without their zero points, do not represent the layer's weight."""
    largest = max(1.0, float(levels.max(initial=0)), -float(levels.min(initial=0)))
    error = np.asarray(levels * steps)
    error -= weight
    np.abs(error, out=error)
    rounding = 8 * np.finfo(np.float32).eps
    if placement.is_half:
        rounding = 0.01  # the weight itself is in half precision
    reach = np.abs(steps) * np.float32(largest)
    if not (error <= rounding * reach + np.finfo(np.float32).tiny).all():
        worst = float((error / np.abs(steps)).max())
        raise ExportError(
            f"layer {placement.wrapper.name!r}: its weight is not on the grid that "
            f"{type(placement.wrapper.quantizer).__name__}.qparams() gives (off by up to {worst:.3g} "
            "steps), so integers would not match the simulation; correct qparams()."
        )
