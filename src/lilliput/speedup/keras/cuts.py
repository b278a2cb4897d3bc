"""Cuts: which indices of which variables stay, found from masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.graph.groups import ChannelGroups, Group, Slice
from lilliput.graph.labels import Flags, Indices
from lilliput.speedup.keras.analysis import Analysis

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Cut:
    """The indices of one dimension of one variable that stay.

    ``keep`` has two dimensions, (groups, inputs per group), where each group of filters keeps inputs
    of its own; ``filters`` is then the dimension that counts filters.
    """

    tensor: str
    dim: int
    keep: Indices
    filters: int = 0

    def of(self, array: Array) -> Array:
        """Return the part of an array that stays."""
        if self.keep.ndim == 1:
            return np.take(array, self.keep, axis=self.dim)
        front, back = (self.filters, self.dim), (0, 1)
        blocks = np.split(np.moveaxis(array, front, back), len(self.keep))
        taken = [block[:, kept] for block, kept in zip(blocks, self.keep, strict=True)]
        return np.moveaxis(np.concatenate(taken), back, front)

    def mask(self, shape: tuple[int, ...]) -> Flags:
        """Return which entries of a variable of that shape stay."""
        mask: Flags = np.zeros(shape, bool)
        if self.keep.ndim == 1:
            np.moveaxis(mask, self.dim, 0)[self.keep] = True
            return mask
        by_filter = np.moveaxis(mask, (self.filters, self.dim), (0, 1))
        for block, kept in zip(np.split(by_filter, len(self.keep)), self.keep, strict=True):
            block[:, kept] = True
        return mask


def cut_all(array: Array, cuts: Iterable[Cut]) -> Array:
    """Return what several cuts leave of one array."""
    for cut in sorted(cuts, key=lambda c: -c.keep.ndim):  # groups are counted before filters go
        array = cut.of(array)
    return array


def find_cuts(analysis: Analysis, removed: Flags) -> list[Cut]:
    """Return the cuts that remove the flagged classes."""
    cuts, walk = [], analysis.walk
    for name, value in analysis.axes.items():
        ragged = walk.ragged.get(name)
        for dim in range(len(value.shape)):
            if ragged is not None and dim == ragged.dim:
                gone = removed[walk.labels.find(ragged.rows.ravel())].reshape(ragged.rows.shape)
                if gone.any():
                    rows = np.stack([np.flatnonzero(~row) for row in gone])
                    cuts.append(Cut(name, dim, rows, ragged.filters))
                continue
            keep = analysis.kept(value, dim, removed)
            if not keep.all():
                cuts.append(Cut(name, dim, np.flatnonzero(keep)))
    return cuts


def find_dead(
    groups: ChannelGroups,
    masks: Mapping[str, Flags],
    trained: Collection[str],
    only_outputs: bool = False,
) -> dict[str, Flags]:
    """Return, per group, the units that masks remove everywhere: from all variables, or the makers.

    Statistics, which are not trained, have no masks and do not count.
    """
    return {g.name: _dead_units(g, masks, trained, only_outputs) for g in groups.groups}


def _dead_units(
    group: Group, masks: Mapping[str, Flags], trained: Collection[str], only_outputs: bool
) -> Flags:
    dead: Flags = np.ones(group.size, bool)
    seen: Flags = np.zeros(group.size, bool)
    for piece in group.slices:
        if piece.tensor not in trained or (only_outputs and not piece.is_output):
            continue
        inside = piece.units >= 0
        mask = masks.get(piece.tensor)
        gone = np.zeros(piece.units.shape, bool) if mask is None else _dead_indices(piece, mask)
        np.logical_and.at(dead, piece.units[inside], gone[inside])
        seen[piece.units[inside]] = True
    return dead & seen


def _dead_indices(piece: Slice, mask: Flags) -> Flags:
    if piece.units.ndim == 1:
        return _lost(mask, piece.dim)
    by_filter = np.moveaxis(mask, (piece.filters, piece.dim), (0, 1))
    return np.stack([_lost(block, 1) for block in np.split(by_filter, len(piece.units))])


def _lost(mask: Flags, dim: int) -> Flags:
    """Return the indices along a dimension of which a mask keeps nothing."""
    rows = np.moveaxis(mask, dim, 0).reshape(mask.shape[dim], -1)
    return np.logical_not(rows.any(axis=1))


def balance(analysis: Analysis, removed: Flags) -> Flags:
    """Take back removals until every balance holds: what is kept too much is zero, so it is exact."""
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
    return removed
