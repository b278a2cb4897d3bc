"""Fake quantization with plain formulas; backends may provide a faster equivalent."""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams, fit


def integer_range(bits: int) -> tuple[int, int]:
    """Return the symmetric range of signed integers of ``bits`` bits, two or more.

    So a symmetric scale wastes nothing.

    Examples
    --------
    >>> integer_range(8)
    (-127, 127)
    """
    if bits < 2:
        raise ValueError(f"received bits={bits}; a signed integer grid needs at least 2.")
    top = 2 ** (bits - 1) - 1
    return -top, top


def quantize_symmetric(tensor: Tensor, bits: int) -> Tensor:
    """Round a tensor to ``2**bits - 1`` levels around zero, scaled by its largest magnitude.

    ``scale = max|x| / (2**(bits-1) - 1)`` and ``q(x) = scale * clip(round(x / scale))``; zero stays
    exactly zero, and an all-zero tensor is returned unchanged.

    Examples
    --------
    >>> import torch
    >>> quantize_symmetric(torch.tensor([0.0, 0.49, 1.0]), bits=2)
    tensor([0., 0., 1.])
    """
    xp = namespace(tensor)
    low, high = integer_range(bits)
    wide = xp.widen(tensor)
    quantized = xp.round_to_grid(wide, xp.positive(xp.max(xp.abs(wide)) / high), low, high)
    return xp.to_float(quantized, like=tensor)


def fake_quantize(tensor: Tensor, qparams: QParams, covers: bool = False) -> Tensor:
    """Round a tensor to a grid, and return the numbers that the integers represent.

    The gradient passes where the tensor is inside the range of the grid. ``covers`` declares that it is
    inside everywhere, which is faster.

    Examples
    --------
    >>> import torch
    >>> grid = Grid(bits=2, is_signed=False, is_symmetric=False)
    >>> fake_quantize(torch.tensor([-1.0, 0.4, 9.0]), QParams(torch.tensor(1.0), torch.tensor(0.0), grid))
    tensor([0., 0., 3.])
    """
    xp, grid = namespace(tensor), qparams.grid
    wide = xp.widen(tensor)
    scale = qparams.spread(qparams.scale, wide)
    is_centred = grid.is_symmetric and grid.fixed_zero_point == 0
    if covers and is_centred:
        quantized = xp.round_to_grid(wide, scale, grid.low, grid.high)
    else:
        zero = None if is_centred else qparams.spread(qparams.zero_point, wide)
        quantized = xp.fake_quantize(wide, scale, grid.low, grid.high, zero)
    return xp.to_float(quantized, like=tensor)


def ranges(tensor: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest value of the entries that share a scale on a grid."""
    xp = namespace(tensor)
    tensor = xp.widen(tensor)
    if grid.group_size is None:
        low, high = xp.range_of(tensor, grid.axis)
        return low, high
    split, axis = _groups(tensor, grid), (grid.axis or 0) % len(xp.shape(tensor))
    return xp.min_over(split, axis + 1), xp.max_over(split, axis + 1)


def _groups(tensor: Tensor, grid: Grid) -> Tensor:
    """Return a tensor with the groups of its axis as a separate axis; the last group is padded."""
    xp, size = namespace(tensor), grid.group_size or 1
    shape = list(xp.shape(tensor))
    axis = (grid.axis or 0) % len(shape)
    groups = -(-shape[axis] // size)
    padded = xp.pad_last(tensor, groups * size - shape[axis], axis)
    return xp.reshape(padded, [*shape[:axis], groups, size, *shape[axis + 1 :]])


def by_scale(tensor: Tensor, grid: Grid) -> tuple[Tensor, tuple[int, ...]]:
    """Return a tensor as a matrix with a column for each scale on a grid, and the shape of all scales.

    Examples
    --------
    >>> import torch
    >>> grid = Grid(bits=4, is_signed=True, is_symmetric=True, axis=1, group_size=2)
    >>> by_scale(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), grid)
    (tensor([[1., 3.],
            [2., 4.]]), (1, 2))
    """
    xp = namespace(tensor)
    if grid.axis is None:
        return xp.reshape(tensor, (-1, 1)), ()
    axis = grid.axis % len(xp.shape(tensor))
    if grid.group_size is None:
        last = xp.moveaxis(tensor, axis, -1)
        count = xp.shape(tensor)[axis]
        return xp.reshape(last, (-1, count)), (count,)
    first = xp.moveaxis(_groups(tensor, grid), axis + 1, 0)
    size, *others = xp.shape(first)
    return xp.reshape(first, (size, -1)), tuple(others)


def covering(tensor: Tensor, grid: Grid) -> QParams:
    """Return the finest grid of its kind that covers a tensor.

    Examples
    --------
    >>> import torch
    >>> grid = Grid(bits=8, is_signed=True, is_symmetric=True, is_narrow=True)
    >>> covering(torch.tensor([-2.54, 1.0]), grid).scale
    tensor(0.0200)
    """
    scale, zero = fit(*ranges(tensor, grid), grid)
    return QParams(scale, zero, grid)


def mean_magnitude(tensor: Tensor, grid: Grid) -> Tensor:
    """Return the mean absolute value of the entries that share a scale on a grid."""
    xp = namespace(tensor)
    sizes = xp.abs(xp.widen(tensor))
    if grid.axis is None:
        return xp.mean(sizes)
    shape = list(xp.shape(sizes))
    axis = grid.axis % len(shape)
    if grid.group_size is None:
        others = tuple(i for i in range(len(shape)) if i != axis)
        return xp.sum(sizes, others) / (xp.size(sizes) / shape[axis]) if others else sizes
    return xp.mean_over(_groups(sizes, grid), axis + 1)
