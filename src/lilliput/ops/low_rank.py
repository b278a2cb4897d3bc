"""Truncated singular value decompositions, in NumPy: the rank, and the two factors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """A matrix (outputs, inputs) as ``left @ diag(values) @ right``, the largest values first.

    Examples
    --------
    >>> found = Decomposition(np.array([[3.0, 0.0], [0.0, 4.0]]))
    >>> found.values.tolist(), found.rank_of_energy(0.6), found.energy(1)
    ([4.0, 3.0], 1, 0.64)
    """

    matrix: Array
    has_vectors: bool = True  # False: only its values will be asked for, which are found sooner

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """Left vectors, values and right vectors."""
        left, values, right = np.linalg.svd(self.matrix, full_matrices=False)
        return left, values, right

    @cached_property
    def values(self) -> Array:
        """The singular values."""
        if self.has_vectors:
            return self.parts[1]
        return np.asarray(np.linalg.svd(self.matrix, compute_uv=False))

    @property
    def full(self) -> int:
        """The largest possible rank."""
        return int(min(self.matrix.shape))

    def energy(self, rank: int) -> float:
        """Return the share of the squared entries that a rank keeps."""
        squares = np.square(self.values)
        total = float(squares.sum())
        return float(squares[:rank].sum()) / total if total else 1.0

    def rank_of_energy(self, share: float) -> int:
        """Return the smallest rank that keeps a share of the squared entries, at least 1."""
        squares = np.cumsum(np.square(self.values))
        # A share that is met up to rounding counts as met.
        short = squares < share * squares[-1] * (1 - 1e-12)
        return int(min(int(short.sum()) + 1, self.full))

    def rank_of_parameters(self, share: float) -> int:
        """Return the largest rank whose factors have at most a share of the entries, 0 if there is none."""
        outputs, inputs = self.matrix.shape
        return int(min(int(share * outputs * inputs + 1e-9) // (outputs + inputs), self.full))

    def factors(self, rank: int) -> tuple[Array, Array]:
        """Return (outputs, rank) and (rank, inputs), whose product is the best approximation of that rank.

        Each value is split into its square roots, so that both factors train at the same pace.
        """
        left, values, right = self.parts
        roots = np.sqrt(values[:rank])
        return left[:, :rank] * roots, roots[:, None] * right[:rank]
