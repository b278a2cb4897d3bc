"""Overwritten parameters and their previous values."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


class Changes:
    """Overwrites parameters in place, and can undo it bit by bit.

    Examples
    --------
    >>> weight = nn.Parameter(torch.ones(2))
    >>> changes = Changes()
    >>> changes.write(weight, torch.zeros(2))
    >>> changes.undo()
    >>> weight.tolist()
    [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._before: dict[nn.Parameter, Tensor] = {}
        self._marks: dict[nn.Parameter, bytes] = {}

    @torch.no_grad()
    def write(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Overwrite a parameter."""
        if parameter not in self._before:
            self._before[parameter] = parameter.detach().clone()
        parameter.copy_(value)

    def seal(self) -> None:
        """Record the current parameters, to detect later changes by other code."""
        self._marks = {parameter: _fingerprint(parameter) for parameter in self._before}

    def is_intact(self) -> bool:
        """Whether the parameters are as recorded by :meth:`seal`; training changes them."""
        return all(_fingerprint(p) == mark for p, mark in self._marks.items())

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the previous values."""
        for parameter, before in self._before.items():
            parameter.copy_(before)
        self._before, self._marks = {}, {}

    def __len__(self) -> int:
        return len(self._before)


def _fingerprint(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data).digest()
