"""Least squares from sums: fit a layer's inputs to its wanted outputs, batch by batch.

Only ``XᵀX``, ``Xᵀy`` and the sums are kept, so memory does not grow with the number of batches.

>>> x = torch.arange(12.0).view(1, 6, 2) ** 0.5
>>> equations = NormalEquations()
>>> equations.add(x, x @ torch.tensor([[1.0], [2.0]]) + 3)
>>> weight, shift = equations.solve(torch.zeros(1, 2, 1), ridge=0)
>>> [round(float(v), 4) for v in (*weight.flatten(), shift)]
[1.0, 2.0, 3.0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NormalEquations:
    """The sums of a least-squares problem, separate for each group of a layer."""

    def __init__(self) -> None:
        self.count = 0
        self.xx: Any = 0.0  # (groups, inputs, inputs)
        self.xy: Any = 0.0  # (groups, inputs, outputs)
        self.x: Any = 0.0  # (groups, 1, inputs)
        self.y: Any = 0.0  # (groups, 1, outputs)
        self.yy: Any = 0.0  # (groups, outputs)

    def add(self, inputs: Tensor, wanted: Tensor) -> None:
        """Add rows: inputs (groups, rows, inputs), wanted (groups, rows, outputs)."""
        transposed = inputs.mT
        self.xx = self.xx + (transposed @ inputs).double()
        self.xy = self.xy + (transposed @ wanted).double()
        self.x = self.x + inputs.sum(1, keepdim=True, dtype=torch.float64)
        self.y = self.y + wanted.sum(1, keepdim=True, dtype=torch.float64)
        self.yy = self.yy + wanted.double().square().sum(1)
        self.count += inputs.shape[1]

    def is_finite(self) -> bool:
        """Whether all sums so far are finite."""
        energies = self.xx.diagonal(dim1=1, dim2=2), self.yy
        return all(bool(x.isfinite().all()) for x in energies)

    def solve(self, start: Tensor, ridge: float, has_shift: bool = True) -> tuple[Tensor, Tensor]:
        """Return the weight (groups, inputs, outputs) and the shift (groups, outputs) that fit best.

        ``ridge`` times the mean energy of the inputs penalizes the distance from ``start``:
        directions that do not occur in the rows are not changed.
        """
        start, mean_x, mean_y = start.double(), self.x / self.count, self.y / self.count
        xx, xy = self.xx / self.count, self.xy / self.count
        if has_shift:
            xx, xy = xx - mean_x.mT @ mean_x, xy - mean_x.mT @ mean_y
        energy = xx.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)
        eye = torch.eye(xx.shape[1], dtype=xx.dtype, device=xx.device)
        priced = xx + (ridge + 1e-9) * energy[:, None, None] * eye
        weight = start + torch.linalg.solve(priced, xy - xx @ start)
        shift = mean_y - mean_x @ weight if has_shift else torch.zeros_like(mean_y)
        return weight, shift[:, 0]

    def error(self, weight: Tensor, shift: Tensor, outputs: Tensor) -> float:
        """Return the squared error of some outputs, relative to the variance of their targets."""
        weight, shift = weight.double(), shift.double()
        product = (weight * (self.xx @ weight - 2 * self.xy)).sum(1)
        cross = shift * (2 * (self.x @ weight - self.y)[:, 0] + self.count * shift)
        error = (self.yy + product + cross)[outputs].clamp(min=0).sum()
        variance = (self.yy - self.y[:, 0].square() / self.count)[outputs].clamp(min=0).sum()
        return float(error / variance.clamp(min=1e-12))
