"""Trails: how the channels along a dimension got there, so that it can be repeated with fewer.

A channel shuffle puts channels into an order that depends on their number. Which layer reads a channel
after several shuffles can therefore only be found by following the same path with fewer channels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lilliput.graph.labels import Indices


@dataclass(frozen=True, eq=False)
class Made:
    """New channels: a dimension of a parameter."""

    key: Hashable
    size: int
    sources: tuple[Trail, ...] = ()

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Return nothing: a trail starts here."""
        return None


@dataclass(frozen=True, eq=False)
class Part:
    """A range of a dimension."""

    sources: tuple[Trail]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of channels."""
        return self.stop - self.start

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Return the same part of fewer channels, or None if it would start or end within one."""
        ends = [scale * self.start, scale * self.stop]
        if any(x.denominator != 1 for x in ends):
            return None
        return given[0][int(ends[0]) : int(ends[1])]


@dataclass(frozen=True, eq=False)
class Joined:
    """Concatenated dimensions."""

    sources: tuple[Trail, ...]

    @property
    def size(self) -> int:
        """Number of channels."""
        return sum(source.size for source in self.sources)

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Join fewer channels."""
        return np.concatenate(given)


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A dimension split into several and joined in another order."""

    sources: tuple[Trail]
    sizes: tuple[int, ...]  # that it is split into
    order: tuple[int, ...]  # in which they are joined

    @property
    def size(self) -> int:
        """Number of channels."""
        return self.sources[0].size

    @property
    def shrinks(self) -> int:
        """The size that shrinks: the largest, and among equal ones the last."""
        return max(range(len(self.sizes)), key=lambda d: (self.sizes[d], d))

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Shuffle fewer channels, or return None if they cannot be split into as many groups."""
        sizes = list(self.sizes)
        smaller = scale * sizes[self.shrinks]
        if smaller.denominator != 1:
            return None
        sizes[self.shrinks] = int(smaller)
        turned: Indices = given[0].reshape(sizes).transpose(self.order).ravel()
        return turned


Trail = Made | Part | Joined | Shuffled
