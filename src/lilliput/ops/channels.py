"""Channels of weights and activations as the rows of a matrix."""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace


def channel_rows(tensor: Tensor, axis: int = 0, groups: int = 1) -> Tensor:
    """Return one row per channel, with all of its entries.

    Parameters
    ----------
    tensor : tensor
        A weight, or the output of a layer.
    axis : int
        The axis that counts channels.
    groups : int
        The number of blocks of channels along axis 0, while ``axis`` counts those
        of one block: the groups of a transposed convolution.

    Examples
    --------
    >>> import torch
    >>> channel_rows(torch.arange(6).reshape(2, 3), axis=1)
    tensor([[0, 3],
            [1, 4],
            [2, 5]])
    >>> channel_rows(torch.arange(8).reshape(4, 2), axis=1, groups=2)
    tensor([[0, 2],
            [1, 3],
            [4, 6],
            [5, 7]])
    """
    xp = namespace(tensor)
    if groups > 1:
        shape = tuple(xp.shape(tensor))
        blocks = xp.reshape(tensor, (groups, shape[0] // groups, *shape[1:]))
        moved = xp.moveaxis(blocks, axis + 1, 1)
        return xp.reshape(moved, (groups * shape[axis], -1))
    moved = xp.moveaxis(tensor, axis, 0)
    return xp.reshape(moved, (xp.shape(moved)[0], -1))
