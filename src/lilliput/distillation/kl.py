"""Distil a classifier's predictions for all classes (Hinton, Vinyals & Dean 2015, arXiv 1503.02531).

The loss is ``T² · KL(p ‖ q)`` with ``p = softmax(teacher / T)`` and ``q = softmax(student / T)``,
averaged over everything but the axis of classes. The factor makes the size of gradients independent of
the temperature.

>>> import torch
>>> one = torch.tensor([[2.0, 0.0]])
>>> round(float(kl_divergence(one, -one, temperature=1.0)), 4), float(kl_divergence(one, one))
(1.5232, 0.0)
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace


def kl_divergence(
    student: Tensor, teacher: Tensor, temperature: float = 2.0, axis: int = -1
) -> Tensor:
    """Return ``T² · KL(teacher ‖ student)`` of logits along an axis, at least 0, and 0 for equal ones."""
    xp = namespace(student)
    wanted = xp.log_softmax(teacher / temperature, axis)
    answered = xp.log_softmax(student / temperature, axis)
    is_possible = wanted > -float("inf")  # classes that the teacher rules out do not count
    gap = xp.where(is_possible, wanted - answered, xp.zeros_like(wanted))
    return xp.mean(xp.sum(xp.exp(wanted) * gap, axis)) * temperature**2
