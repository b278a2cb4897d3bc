"""Cuts: the indices of tensors that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.graph.analysis import Analysis
from lilliput.graph.labels import Flags, Indices

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Cut:
    """The indices of one dimension of one tensor that are kept.

    ``keep`` has two dimensions, (groups, inputs per group), if each group of filters keeps its
    own inputs; ``filters`` is then the dimension that counts filters.
    """

    tensor: str
    dim: int
    keep: Indices
    filters: int = 0

    def of(self, array: Array) -> Array:
        """Return the part of an array that is kept."""
        if self.keep.ndim == 1:
            return np.take(array, self.keep, axis=self.dim)
        front, back = (self.filters, self.dim), (0, 1)
        blocks = np.split(np.moveaxis(array, front, back), len(self.keep))
        taken = [block[:, kept] for block, kept in zip(blocks, self.keep, strict=True)]
        return np.moveaxis(np.concatenate(taken), back, front)

    def mask(self, shape: tuple[int, ...]) -> Flags:
        """Return which entries of a tensor of that shape are kept."""
        mask: Flags = np.zeros(shape, bool)
        if self.keep.ndim == 1:
            np.moveaxis(mask, self.dim, 0)[self.keep] = True
            return mask
        by_filter = np.moveaxis(mask, (self.filters, self.dim), (0, 1))
        for block, kept in zip(np.split(by_filter, len(self.keep)), self.keep, strict=True):
            block[:, kept] = True
        return mask

    def within(self, prefix: str) -> Cut:
        """Return the cut with its tensor name relative to a module."""
        return replace(self, tensor=self.tensor.removeprefix(prefix))


def in_turn(cuts: Iterable[Cut]) -> list[Cut]:
    """Return the cuts of one tensor in order of application: groups before their filters are removed."""
    return sorted(cuts, key=lambda cut: -cut.keep.ndim)


def cut_array(array: Array, cuts: Iterable[Cut]) -> Array:
    """Return the part of an array that several cuts leave."""
    for cut in in_turn(cuts):
        array = cut.of(array)
    return array


def find_cuts(analysis: Analysis, removed: Flags) -> list[Cut]:
    """Return the cuts that remove the flagged classes."""
    cuts, walk = [], analysis.walk
    for name, value in analysis.axes.items():
        ragged = walk.ragged.get(name)
        if ragged is not None:
            gone = removed[walk.labels.find(ragged.rows.ravel())].reshape(ragged.rows.shape)
            if gone.any():
                kept_rows = np.stack([np.flatnonzero(~row) for row in gone])
                cuts.append(Cut(name, ragged.dim, kept_rows, ragged.filters))
        for dim in range(len(value.shape)):
            if ragged is not None and dim == ragged.dim:
                continue
            keep = analysis.kept(value, dim, removed)
            if not keep.all():
                cuts.append(Cut(name, dim, np.flatnonzero(keep)))
    return cuts


def in_order(analysis: Analysis, removed: Flags, cuts: Iterable[Cut]) -> Iterator[Cut]:
    """Yield cuts with the kept indices in the order that shuffles of fewer channels expect."""
    orders: dict[tuple[str, int], Indices] = {}
    for stage in analysis.stages:
        if removed[stage.roots].any():
            orders |= stage.orders(removed)
    for cut in cuts:
        yield replace(cut, keep=orders.get((cut.tensor, cut.dim), cut.keep))


def balance(analysis: Analysis, removed: Flags) -> Flags:
    """Undo removals until every balance holds; this is exact, because the restored channels are zero."""
    removed = removed.copy()
    find = analysis.walk.labels.find
    rows = [[find(row) for row in x.rows] for x in analysis.walk.balances]
    changed = True
    while changed:
        changed = False
        for balanced in rows:
            counts = [int(removed[row].sum()) for row in balanced]
            for row, count in zip(balanced, counts, strict=True):
                if count > min(counts):
                    gone = np.unique(row[removed[row]])
                    removed[gone[-1:]] = False
                    changed = True
                    break
    for stage in analysis.stages:
        removed = stage.fit_width(removed)
    return removed


def by_tensor(cuts: Iterable[Cut]) -> dict[str, list[Cut]]:
    """Return the cuts by tensor."""
    found: dict[str, list[Cut]] = {}
    for cut in cuts:
        found.setdefault(cut.tensor, []).append(cut)
    return found
