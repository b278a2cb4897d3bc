"""Distil the direction of features, independent of their magnitude (as in DistilBERT, Sanh et al. 2019).

The loss is the mean of ``1 - cos(student, teacher)`` over all vectors: those along an axis, or all entries of
each sample if none is given.

>>> import torch
>>> one = torch.tensor([[3.0, 4.0]])
>>> float(cosine_distance(one, 2 * one)), float(cosine_distance(one, -one))
(0.0, 2.0)
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace

_SHORTEST = 1e-8  # vectors that are shorter count as having this length, as in torch


def cosine_distance(student: Tensor, teacher: Tensor, axis: int | None = None) -> Tensor:
    """Return the mean of one minus the cosine of the angle between two vectors."""
    xp = namespace(student)
    if axis is None:
        student, teacher = (xp.reshape(x, (xp.shape(x)[0], -1)) for x in (student, teacher))
        axis = -1
    product = xp.sum(student * teacher, axis)
    return xp.mean(1 - product / (_length(student, axis) * _length(teacher, axis)))


def _length(vectors: Tensor, axis: int) -> Tensor:
    xp = namespace(vectors)
    squares = xp.sum(vectors**2, axis)
    return xp.sqrt(xp.where(squares > _SHORTEST**2, squares, _SHORTEST**2))
