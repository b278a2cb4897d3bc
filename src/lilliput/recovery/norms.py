"""Recalibration of batch norms on every framework: new statistics from sums over batches.

>>> import numpy as np
>>> moments = Moments("norm")
>>> moments.add(np.array([[1.0, 2.0]]))
>>> moments.add(np.array([[3.0, 4.0, 5.0]]))
>>> [float(value[0]) for value in moments.mean_and_variance()]
[3.0, 2.5]
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError

_MOST = 100.0  # largest change of a variance, so that a nearly constant channel is not amplified


@dataclass
class Moments:
    """Sum, sum of squares and number of the values of each channel; float64, of NumPy or torch."""

    name: str  # of the layer
    total: Any = 0.0
    squares: Any = 0.0
    count: int = 0

    def add(self, rows: Any) -> None:
        """Add a batch, one row per channel."""
        if rows.shape[1] < 2:
            raise AlgorithmError(
                f"recalibrate(): a batch provides layer {self.name!r} {rows.shape[1]} values per channel, "
                "expected at least two to compute a variance; use batches of about 16 examples."
            )
        self.total = self.total + rows.sum(1)
        self.squares = self.squares + (rows * rows).sum(1)
        self.count += int(rows.shape[1])

    def mean_and_variance(self, freedom: int = 1) -> tuple[Any, Any]:
        """Return the mean and the variance of each channel, unbiased or (0) as norms compute it."""
        mean = self.total / self.count
        variance = (self.squares / self.count - mean * mean).clip(min=0)
        if not math.isfinite(float(variance.sum())):
            raise AlgorithmError(
                f"recalibrate(): layer {self.name!r} received NaN or infinite values; check the batches."
            )
        return mean, variance * (self.count / (self.count - freedom))


class Renewal:
    """One batch norm of a pruned model: its inputs, and the resulting statistics.

    Alone, these are the mean and the variance of its inputs. With an original, they are chosen so that the
    norm's output has the same mean and variance on these batches as in the original: the statistics change
    only by as much as pruning changed the norm's inputs, whatever the batches are.

    Parameters
    ----------
    name : str
        Name of the norm.
    write : callable
        Sets the mean and variance of the norm.
    held : tuple, optional
        Mean, variance and epsilon of this norm in the original.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Any, Any], None],
        held: tuple[Any, Any, float] | None = None,
    ) -> None:
        self.write, self.held = write, held
        self.here, self.there = Moments(name), Moments(name)
        self._due: deque[tuple[Any, Any]] = deque()  # of the last batch in the original

    def see_original(self, rows: Any) -> None:
        """Add the inputs of the original's norm."""
        self.there.add(rows)
        self._due.append(_of_batch(self.here.name, rows))

    def see(self, rows: Any) -> None:
        """Add a batch, and make the norm normalize by it as in training."""
        self.here.add(rows)
        batch = _of_batch(self.here.name, rows)
        if self.held is None:
            self.write(*batch)
        elif not self._due:
            raise UnsupportedModelError(
                f"recalibrate(): layer {self.here.name!r} runs more often than in the original; "
                "recalibrate without original."
            )
        else:
            self.write(*moved(self.held, self._due.popleft(), batch))

    def statistics(self, over_processes: Callable[[Moments], Moments]) -> tuple[Any, Any] | None:
        """Return mean and variance from all batches in all processes; None if there were none."""
        here, there = over_processes(self.here), over_processes(self.there)
        if not here.count:
            return None
        found = here.mean_and_variance()
        return found if self.held is None else moved(self.held, there.mean_and_variance(), found)


def moved(
    held: tuple[Any, Any, float], there: tuple[Any, Any], here: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return the statistics with which a norm has the same output mean and variance as another one.

    Parameters
    ----------
    held : tuple
        Mean, variance and epsilon of the other norm.
    there, here : tuple
        Mean and variance of the inputs of the other norm and of this one.

    Examples
    --------
    >>> import numpy as np
    >>> one, two = np.array([1.0]), np.array([2.0])
    >>> mean, variance = moved((one, one, 0.0), (two, one), (10 * two, 4 * one))
    >>> [round(float(x[0]), 4) for x in (mean, variance)]  # (20 - 18) / 2 is (2 - 1) / 1
    [18.0, 4.0]
    """
    mean, variance, epsilon = held
    least = 1e-6 * (variance + epsilon)
    ratio = ((here[1] + least) / (there[1] + least)).clip(1 / _MOST, _MOST)
    new = ((variance + epsilon) * ratio - epsilon).clip(min=0)
    scale = ((new + epsilon) / (variance + epsilon)) ** 0.5
    return here[0] - (there[0] - mean) * scale, new


def _of_batch(name: str, rows: Any) -> tuple[Any, Any]:
    moments = Moments(name)
    moments.add(rows)
    return moments.mean_and_variance(freedom=0)


def check_model(model: Any, norms: Sized, quantizers: Sized) -> None:
    """Raise if there is nothing to recalibrate, or if it is too late."""
    if not norms:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no batch norms with running statistics, so there is nothing to "
            "recalibrate; reconstruct(), for torch models, works without them."
        )
    if quantizers:
        raise StageError(
            "recalibrate() was called after a quantizer, whose scales depend on the old statistics; "
            "recalibrate first, then quantize."
        )


def check_original(is_same: bool, sizes: Mapping[str, int], original: Mapping[str, int]) -> None:
    """Raise if the norms of the original (channels by name) differ from the model's."""
    if is_same:
        raise StageError(
            "recalibrate(): original is the model itself; pass a copy made before pruning."
        )
    if dict(sizes) == dict(original):
        return
    names = sorted(name for name in {*sizes, *original} if sizes.get(name) != original.get(name))
    first = names[0]
    raise StageError(
        f"recalibrate(): batch norm {first!r} has {sizes.get(first, 'no')} channels here and "
        f"{original.get(first, 'no')} in the original. Recalibrate the masked model, before speedup(), or "
        "omit original."
    )


def renew(renewals: Iterable[Renewal], over_processes: Callable[[Moments], Moments]) -> None:
    """Set the new statistics of all norms; a norm that no batch reached keeps its own."""
    every = list(renewals)
    found = [one.statistics(over_processes) for one in every]
    if not any(found):
        raise AlgorithmError("recalibrate(): no batch was run, or none reached a batch norm.")
    for one, statistics in zip(every, found, strict=True):
        if statistics is not None:
            one.write(*statistics)
