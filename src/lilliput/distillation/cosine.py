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

_TINY = 1e-12


def cosine_distance(student: Tensor, teacher: Tensor, axis: int | None = None) -> Tensor:
    """Return the mean of one minus the cosine of the angle between two vectors."""
    xp = namespace(student)
    if axis is None:
        student, teacher = (xp.reshape(x, (xp.shape(x)[0], -1)) for x in (student, teacher))
        axis = -1
    product = xp.sum(student * teacher, axis)
    energy = xp.sum(student**2, axis) * xp.sum(teacher**2, axis)
    return xp.mean(1 - product / xp.sqrt(energy + _TINY))
