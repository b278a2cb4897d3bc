"""Trails: how the channels along a dimension came there, so that it can be repeated with fewer.

A channel shuffle puts channels into an order that depends on how many there are. Which layer reads a
channel after several shuffles can therefore only be told by going the same way with fewer channels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lilliput.graph.labels import Indices


@dataclass(frozen=True, eq=False)
class Made:
    """Channels of their own: a dimension of a parameter."""

    key: Hashable
    size: int
    sources: tuple[Trail, ...] = ()

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Return nothing: these are where a trail begins."""
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
        """Return the same part of fewer channels, None if it would begin or end within one."""
        ends = [scale * self.start, scale * self.stop]
        if any(x.denominator != 1 for x in ends):
            return None
        return given[0][int(ends[0]) : int(ends[1])]


@dataclass(frozen=True, eq=False)
class Joined:
    """Dimensions one after the other."""

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
    """A dimension cut into several, and put together in another order of them."""

    sources: tuple[Trail]
    sizes: tuple[int, ...]  # into which it is cut
    order: tuple[int, ...]  # in which they are put together

    @property
    def size(self) -> int:
        """Number of channels."""
        return self.sources[0].size

    @property
    def shrinks(self) -> int:
        """The one of the sizes that gets smaller: the largest, and of equals the last."""
        return max(range(len(self.sizes)), key=lambda d: (self.sizes[d], d))

    def follow(self, given: Sequence[Indices], scale: Fraction) -> Indices | None:
        """Shuffle fewer channels, None if they cannot be cut into as many groups."""
        sizes = list(self.sizes)
        smaller = scale * sizes[self.shrinks]
        if smaller.denominator != 1:
            return None
        sizes[self.shrinks] = int(smaller)
        turned: Indices = given[0].reshape(sizes).transpose(self.order).ravel()
        return turned


Trail = Made | Part | Joined | Shuffled
