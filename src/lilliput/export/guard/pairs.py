"""Bounds on sums of two products in integer kernels that accumulate in 16 bits; see saturation."""

from __future__ import annotations

import numpy as np

from lilliput.frameworks.exporting.simulation import Array

LIMIT = 32767  # on both sides: a folded batch norm may flip signs
MARGIN = 1.1  # other data may have somewhat larger activations
ENOUGH = (
    256  # values of a channel to be seen; with fewer, activations may be as large as their grid
)
AIM = LIMIT - 510  # rounding again may enlarge the sum of a pair by 255 each


def worst_pairs(weight: Array, largest: Array | None = None, groups: int = 1) -> Array:
    """Return the largest possible sum of a pair of products in each output channel, in magnitude.

    Sums above ``LIMIT`` saturate. It is never less than the sums that occurred, and rarely more.

    Parameters
    ----------
    weight : array
        The integers: (outputs, inputs), or (outputs, inputs per group, *kernel).
    largest : array, optional
        Two rows: the largest stored integer of each input channel, and the largest sum of each channel
        and the next at the same position; by default all activations are 255.
    groups : int
        The groups of the convolution.

    Examples
    --------
    >>> weight = np.array([[127, 127, 1], [64, 64, 127], [127, -127, 127]])
    >>> worst_pairs(weight).tolist()
    [64770.0, 32640.0, 32385.0]
    >>> worst_pairs(weight, np.array([[200, 150, 9], [250, 150, 9]])).tolist()
    [31750.0, 16000.0, 25400.0]
    """
    channels, outputs = weight.shape[1], len(weight) // groups
    if weight.ndim > 2 and channels == outputs == 1:
        return np.zeros(len(weight), np.float32)
    if largest is None:
        largest = np.broadcast_to([[255.0], [510.0]], (2, groups * channels))
    single, double = largest.astype(np.float32).reshape(2, groups, 1, channels)
    # The last channel is paired with the first one at the next position of the kernel.
    double = np.concatenate([double[..., :-1], single[..., -1:] + single[..., :1]], -1)
    integers = np.moveaxis(weight.astype(np.float32), 1, -1).reshape(groups, outputs, -1)
    integers = np.pad(integers, ((0, 0), (0, 0), (0, integers.shape[-1] % 2)))
    order = np.arange(integers.shape[-1]) % channels
    first, second = single[..., order[0::2]], single[..., order[1::2]]
    together = double[..., order[0::2]]
    sums = []
    for part in (integers.clip(min=0), -integers.clip(max=0)):
        left, right = part[..., 0::2], part[..., 1::2]
        both = np.minimum(left, right)
        sums.append(both * together + (left - both) * first + (right - both) * second)
    return np.asarray(np.maximum(*sums).max(-1).reshape(-1))
