"""Distil spatial attention maps (attention transfer, Zagoruyko & Komodakis 2017, arXiv 1612.03928).

The map of a sample is the mean of its squared features over the channels, scaled to length one; the loss is
the mean squared distance of two maps over samples. The numbers of channels may differ.

>>> import torch
>>> left, right = torch.zeros(2, 1, 3, 2, 2)
>>> left[..., 0], right[..., 1] = 1, 5
>>> float(attention_distance(left, 7 * left, axis=1))
0.0
>>> round(float(attention_distance(left, right, axis=1)), 4)
2.0
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace

_SHORTEST = 1e-12  # maps that are shorter count as having this length


def attention_distance(student: Tensor, teacher: Tensor, axis: int) -> Tensor:
    """Return the squared distance of normalized maps; ``axis`` is that of the channels."""
    xp = namespace(student)
    gap = _attention(student, axis) - _attention(teacher, axis)
    return xp.mean(xp.sum(gap**2, 1))


def _attention(features: Tensor, axis: int) -> Tensor:
    xp = namespace(features)
    flat = xp.mean_over(features**2, axis)
    flat = xp.reshape(flat, (xp.shape(flat)[0], -1))
    squares = xp.sum(flat**2, (1,))
    return flat / xp.sqrt(xp.where(squares > _SHORTEST**2, squares, _SHORTEST**2))[:, None]
