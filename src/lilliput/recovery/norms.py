"""What recalibrating batch norms is on every framework: sums of what each of them is given.

>>> import numpy as np
>>> moments = Moments("norm")
>>> moments.add(np.array([[1.0, 2.0]]))
>>> moments.add(np.array([[3.0, 4.0, 5.0]]))
>>> [float(value[0]) for value in moments.mean_and_variance()]
[3.0, 2.5]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError


@dataclass
class Moments:
    """Sum, sum of squares and number of the values of each channel; float64, of NumPy or torch."""

    name: str  # of the layer
    total: Any = 0.0
    squares: Any = 0.0
    count: int = 0

    def add(self, rows: Any) -> None:
        """Take a batch into account, one row per channel."""
        if rows.shape[1] < 2:
            raise AlgorithmError(
                f"recalibrate(): a batch gives layer {self.name!r} {rows.shape[1]} values per channel, "
                "expected two or more, or there is no variance; use batches of 16 examples or so."
            )
        self.total = self.total + rows.sum(1)
        self.squares = self.squares + (rows * rows).sum(1)
        self.count += int(rows.shape[1])

    def mean_and_variance(self) -> tuple[Any, Any]:
        """Return the mean and the unbiased variance of each channel."""
        mean = self.total / self.count
        variance = (self.squares / self.count - mean * mean).clip(min=0)
        if not math.isfinite(float(variance.sum())):
            raise AlgorithmError(
                f"recalibrate(): layer {self.name!r} was given NaN or infinite values; look for them in "
                "the batches."
            )
        return mean, variance * (self.count / (self.count - 1))


def check_model(model: Any, norms: Sized, quantizers: Sized) -> None:
    """Raise if there is nothing to recalibrate, or it is too late for it."""
    if not norms:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no batch norms with running statistics, so there is nothing to "
            "recalibrate; reconstruct(), for torch models, works without them."
        )
    if quantizers:
        raise StageError(
            "recalibrate() came after a quantizer, whose scales belong to the statistics as they were; "
            "recalibrate first, quantize then."
        )


def statistics_of(moments: Iterable[Moments]) -> list[tuple[Any, Any] | None]:
    """Return mean and variance of each norm; None for one that no batch reached."""
    found = [one.mean_and_variance() if one.count else None for one in moments]
    if not any(found):
        raise AlgorithmError("recalibrate(): no batch was run, or none reached a batch norm.")
    return found
