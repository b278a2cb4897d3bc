"""Integer grids: the numbers that a quantized tensor may have, and how real numbers are mapped to them.

``q = clip(round(x / scale) + zero_point, low, high)`` and back ``x = (q - zero_point) * scale``; zero is
always on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from lilliput.ops.namespace import Tensor, namespace


@dataclass(frozen=True)
class Grid:
    """The integers a tensor is rounded to, and which of its entries share a scale.

    Parameters
    ----------
    bits : int
        1 to 16.
    is_signed : bool
        Whether the integers are around zero (int8) or from zero on (uint8).
    is_symmetric : bool
        Whether the zero point is fixed, at zero or in the middle, instead of fitted to the values.
    is_narrow : bool
        Whether the lowest integer is not used, so that both sides are equally long: -127 to 127.
    axis : int, optional
        The axis with one scale per entry, or that is divided into groups; None: one scale for all.
    group_size : int, optional
        How many consecutive entries along ``axis`` share a scale; the last group may be shorter.
    is_dynamic : bool
        Whether the scale is computed for each tensor: no scale is known beforehand.

    Examples
    --------
    >>> grid = Grid(bits=8, is_signed=True, is_symmetric=True, is_narrow=True)
    >>> grid.low, grid.high, grid.fixed_zero_point
    (-127, 127, 0)
    >>> Grid(bits=4, is_signed=False, is_symmetric=False).dtype
    'uint4'
    """

    bits: int
    is_signed: bool
    is_symmetric: bool
    is_narrow: bool = False
    axis: int | None = None
    group_size: int | None = None
    is_dynamic: bool = False

    @property
    def low(self) -> int:
        """The smallest integer."""
        return (-(2 ** (self.bits - 1)) if self.is_signed else 0) + self.is_narrow

    @property
    def high(self) -> int:
        """The largest integer."""
        return int(2 ** (self.bits - self.is_signed)) - 1

    @property
    def fixed_zero_point(self) -> int:
        """The zero point of a symmetric grid."""
        return 0 if self.is_signed else 2 ** (self.bits - 1)

    @property
    def dtype(self) -> str:
        """The usual name of these integers."""
        return f"{'int' if self.is_signed else 'uint'}{self.bits}"

    @property
    def granularity(self) -> str:
        """Which entries share a scale, in the terms of a config list."""
        if self.axis is None:
            return "per_tensor"
        return "per_channel" if self.group_size is None else "per_group"


@dataclass(frozen=True)
class QParams:
    """A grid with its scales.

    Parameters
    ----------
    scale, zero_point : tensor
        Zero-dimensional with one scale for all, one-dimensional with a scale per channel; with groups, of the
        tensor's own shape except for the number of groups along the axis. Zero points are integers. For a
        dynamic grid they are 1 and 0, without meaning.
    grid : Grid
        The integers.
    is_result : bool
        How an activation gets on the grid: False, it is only rounded; True, the
        algorithm's own code produces numbers on the grid (``sign(x)``).
    groups : Groups, optional
        For a weight that is stored in fewer bits than it is multiplied in: its stored form.
    """

    scale: Tensor
    zero_point: Tensor
    grid: Grid
    is_result: bool = False
    groups: Groups | None = None

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """Return scales or zero points in a shape that broadcasts with ``like``."""
        return spread(values, namespace(like).shape(like), self.grid)

    def to_integers(self, tensor: Tensor) -> Tensor:
        """Return the integers that represent a tensor, as floating-point numbers."""
        xp = namespace(tensor)
        scale, zero = (self.spread(values, tensor) for values in (self.scale, self.zero_point))
        return xp.clip(xp.round(tensor / scale) + zero, self.grid.low, self.grid.high)

    def to_reals(self, integers: Tensor) -> Tensor:
        """Return the numbers that integers represent."""
        scale, zero = (self.spread(values, integers) for values in (self.scale, self.zero_point))
        return (integers - zero) * scale


@dataclass(frozen=True)
class Groups:
    """A weight in few bits with scales for groups; rounding its values gives another grid's integers.

    Parameters
    ----------
    integers : tensor
        The integers.
    qparams : QParams
        Their grid and scales.
    """

    integers: Tensor
    qparams: QParams


def spread(values: Tensor, shape: tuple[int, ...], grid: Grid) -> Tensor:
    """Return one value per tensor, channel or group in a shape that broadcasts with ``shape``.

    Examples
    --------
    >>> import torch
    >>> grid = Grid(bits=4, is_signed=True, is_symmetric=True, axis=1, group_size=2)
    >>> spread(torch.tensor([[1.0, 2.0]]), (1, 3), grid)
    tensor([[1., 1., 2.]])
    """
    if grid.axis is None:
        return values
    xp = namespace(values)
    if grid.group_size is not None:
        wide = xp.repeat(values, grid.group_size, grid.axis)
        return xp.take_first(wide, shape[grid.axis], grid.axis)
    return xp.reshape(values, [-1 if i == grid.axis % len(shape) else 1 for i in range(len(shape))])


def fit(low: Tensor, high: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return scales and zero points with which a grid covers the ranges from ``low`` to ``high``.

    The range is widened to include zero, and the zero point is an integer, so that zero is exact.

    Examples
    --------
    >>> import torch
    >>> fit(torch.tensor(0.0), torch.tensor(2.55), Grid(8, is_signed=False, is_symmetric=False))
    (tensor(0.0100), tensor(0.))
    """
    xp = namespace(low)
    low, high = xp.widen(low), xp.widen(high)
    below, above = xp.relu(-low), xp.relu(high)
    if grid.is_symmetric:
        zero = xp.zeros_like(above) + grid.fixed_zero_point
        # Both sides must fit; -128 is one step further than 127.
        scale = xp.maximum(
            above / (grid.high - grid.fixed_zero_point),
            below / max(grid.fixed_zero_point - grid.low, 1),
        )
        return xp.positive(scale), zero
    scale = xp.positive((below + above) / (grid.high - grid.low))
    zero = xp.clip(grid.low + xp.round(below / scale), grid.low, grid.high)
    return scale, zero
