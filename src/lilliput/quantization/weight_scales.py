"""The scales with which a rounded weight is nearest to the original.

A range narrower than that of the weight cuts off a few entries, and rounds all others finer.
"""

from __future__ import annotations

from lilliput.ops.fakequant import by_scale
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams, fit

_SHARES = tuple(0.95**i for i in range(1, 60))  # of a weight's range, down to 5 %
_LOOKS = 4  # after this many shares, check whether smaller ones can still be better
_PIECE = 1 << 15  # entries that stay in the cache while all shares are tried
_NARROWEST = 64  # columns at a time: fewer are slow, whatever their length


def best_scales(weight: Tensor, grid: Grid) -> QParams:
    """Return the scales with the smallest mean squared error of rounding a weight.

    The full range is multiplied by several shares; the best one is chosen for each scale.

    Examples
    --------
    >>> import torch
    >>> from lilliput.ops.fakequant import covering
    >>> grid = Grid(bits=2, is_signed=True, is_symmetric=True, is_narrow=True)
    >>> weight = torch.tensor([0.9, -1.0, 1.1, -1.0, 1.0, 2.0])
    >>> covering(weight, grid).scale, best_scales(weight, grid).scale
    (tensor(2.), tensor(1.1376))
    """
    xp = namespace(weight)
    columns, shape = by_scale(xp.widen(weight), grid)
    entries, count = xp.shape(columns)
    width = max(_PIECE // entries, _NARROWEST)
    parts = [_best_of(columns[:, i : i + width], grid) for i in range(0, count, width)]
    scale, zero = (xp.reshape(xp.concat(x), shape) for x in zip(*parts, strict=True))
    return QParams(scale, zero, grid)


def _best_of(columns: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the best scale and zero point of each column."""
    xp = namespace(columns)
    low, high = xp.min_over(columns, 0), xp.max_over(columns, 0)
    scale, zero = fit(low, high, grid)
    smallest = _squared_error(columns, scale, zero, grid)
    for i, share in enumerate(_SHARES):
        tried, shifted = fit(low * share, high * share, grid)
        if i % _LOOKS == 0:
            excess = _cut_off(columns, tried, shifted, grid) - smallest
            if float(xp.min_over(excess, 0)) >= 0:
                break  # smaller ones cannot be better either
        error = _squared_error(columns, tried, shifted, grid)
        is_better = error < smallest
        smallest = xp.where(is_better, error, smallest)
        scale, zero = xp.where(is_better, tried, scale), xp.where(is_better, shifted, zero)
    return scale, zero


def _cut_off(columns: Tensor, scale: Tensor, zero: Tensor, grid: Grid) -> Tensor:
    """Return the smallest possible error of each column with this range or any smaller one: that of clipping.

    Zero points are integers, so a smaller range may extend up to one step further out.
    """
    xp = namespace(columns)
    low, high = (grid.low - zero - 1) * scale, (grid.high - zero + 1) * scale
    outside = xp.relu(low - columns) + xp.relu(columns - high)
    return xp.mean_over(outside * outside, 0)


def _squared_error(columns: Tensor, scale: Tensor, zero: Tensor, grid: Grid) -> Tensor:
    """Return the mean squared error of rounding each column with its own scale."""
    xp = namespace(columns)
    zeros = None if grid.is_symmetric and grid.fixed_zero_point == 0 else zero
    difference = xp.fake_quantize(columns, scale, grid.low, grid.high, zeros) - columns
    return xp.mean_over(difference * difference, 0)
