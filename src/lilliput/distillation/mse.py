"""Distil the features of a layer (FitNets, Romero et al. 2015, arXiv 1412.6550): mean squared difference.

>>> import torch
>>> float(mean_squared_error(torch.zeros(2, 3), torch.full((2, 3), 2.0)))
4.0
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace


def mean_squared_error(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of the squared differences of all entries."""
    return namespace(student).mean((student - teacher) ** 2)
