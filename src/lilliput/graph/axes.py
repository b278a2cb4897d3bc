"""Axes: the labels of one dimension, and how dimensions split, merge and unify."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lilliput.graph.labels import Indices, Labels
from lilliput.graph.trails import Joined, Made, Part, Shuffled, Trail


@dataclass(frozen=True, eq=False)
class Column:
    """One label for each index of a dimension.

    Parameters
    ----------
    labels : array of int
        One per index of the dimension.
    is_zero : bool
        Whether the values at removed indices are zero in the masked model, so that a sum
        over the dimension is the same without them.
    trail : Trail, optional
        How the channels got here, if that can be repeated with fewer of them.
    """

    labels: Indices
    is_zero: bool = False
    trail: Trail | None = None


# An index disappears if its label in any column does. No columns: every index is kept.
Axis = tuple[Column, ...]
FIXED: Axis = ()


class Axes:
    """Split, merge and unify axes; what cannot be expressed is pinned, with the reason."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.reason = ""  # given to everything that the current op pins
        self.trails: list[Trail] = []  # each after its sources
        self.meetings: list[tuple[Trail | None, Trail | None]] = []  # of single columns

    def fresh(self, key: Hashable, size: int, is_zero: bool = False) -> Axis:
        """Return an axis of new channels."""
        if size < 2:
            return FIXED
        return (Column(self.labels.fresh(key, size), is_zero, self._trail(Made(key, size))),)

    def _trail(self, trail: Trail) -> Trail:
        self.trails.append(trail)
        return trail

    def tidy(self, axis: Axis) -> Axis:
        """Apply refinements, and drop redundant columns: fully pinned ones and duplicates."""
        found: list[Column] = []
        for column in axis:
            for labels in self.labels.expand(column.labels):
                pinned = self.labels.is_pinned(labels)
                if pinned.all():
                    continue
                roots = np.where(pinned, 0, self.labels.find(labels))
                same = [i for i, x in enumerate(found) if np.array_equal(self.roots(x), roots)]
                if same:
                    is_zero = found[same[0]].is_zero or column.is_zero
                    found[same[0]] = replace(found[same[0]], is_zero=is_zero)
                else:
                    trail = column.trail if labels is column.labels else None
                    found.append(Column(labels, column.is_zero, trail))
        return tuple(found)

    def roots(self, column: Column) -> Indices:
        """Return the classes of a column, 0 for pinned ones."""
        roots = self.labels.find(column.labels)
        return np.where(self.labels.is_pinned(roots), 0, roots)

    def pin(self, axis: Axis, reason: str = "") -> None:
        """Keep every index of an axis."""
        for column in axis:
            for labels in self.labels.expand(column.labels):
                self.labels.pin(labels, reason or self.reason)

    def split(self, axis: Axis, sizes: Sequence[int], key: Hashable) -> list[Axis]:
        """Return the axes of the dimensions that one dimension is split into."""
        result: list[list[Column]] = [[] for _ in sizes]
        for number, column in enumerate(self.tidy(axis)):
            grid = self.roots(column).reshape(tuple(sizes))
            varies = [d for d in range(len(sizes)) if (grid != np.take(grid, [0], axis=d)).any()]
            if len(varies) == 1:
                at = [slice(None) if d == varies[0] else 0 for d in range(len(sizes))]
                labels = column.labels.reshape(tuple(sizes))[tuple(at)]
                trail = column.trail if len(labels) == len(column.labels) else None
                result[varies[0]].append(replace(column, labels=labels, trail=trail))
            elif not varies:  # a single channel: nothing would be left without it
                self.labels.pin(column.labels, self.reason)
            else:
                parts = self._refine(column, sizes, varies, (key, number))
                for d, part in zip(varies, parts, strict=True):
                    result[d].append(part)
        return [tuple(columns) for columns in result]

    def _refine(
        self, column: Column, sizes: Sequence[int], dims: Sequence[int], key: Hashable
    ) -> list[Column]:
        """Turn a column into a product, with new labels for each dimension along which it varies."""
        parts, spread = [], []
        positions = np.indices(tuple(sizes)).reshape(len(sizes), -1)
        for d in dims:
            fresh = self.labels.fresh((key, d), sizes[d])
            parts.append(Column(fresh, column.is_zero))
            spread.append(fresh[positions[d]])
        self.labels.refine(column.labels, spread, self.reason)
        return parts

    def merge(self, axes: Sequence[Axis], sizes: Sequence[int]) -> Axis:
        """Return the axis of the dimension that several are flattened into."""
        columns = []
        for d, axis in enumerate(axes):
            before, after = prod(sizes[:d]), prod(sizes[d + 1 :])
            for column in self.tidy(axis):
                labels = np.tile(np.repeat(column.labels, after), before)
                trail = column.trail if before * after == 1 else None
                columns.append(replace(column, labels=labels, trail=trail))
        return tuple(columns)

    def take(self, axis: Axis, where: Indices | slice) -> Axis:
        """Return the axis of selected indices of a dimension."""
        return tuple(
            replace(c, labels=c.labels[where], trail=self._part(c, where)) for c in self.tidy(axis)
        )

    def _part(self, column: Column, where: Indices | slice) -> Trail | None:
        if column.trail is None or not isinstance(where, slice):
            return None
        start, stop, step = where.indices(len(column.labels))
        if step != 1 or stop <= start:
            return None
        whole = stop - start == len(column.labels)
        return column.trail if whole else self._trail(Part((column.trail,), start, stop))

    def join(self, axes: Sequence[Axis], sizes: Sequence[int]) -> Axis:
        """Return the axis of several concatenated dimensions."""
        axes = [self.tidy(axis) for axis in axes]
        columns = []
        for k in range(max((len(axis) for axis in axes), default=0)):
            parts, is_zero = [], True
            for axis, size in zip(axes, sizes, strict=True):
                has_one = k < len(axis)
                parts.append(axis[k].labels if has_one else np.zeros(size, np.int64))
                is_zero &= not has_one or axis[k].is_zero
            trails = [axis[k].trail if k < len(axis) else None for axis in axes]
            known = [trail for trail in trails if trail is not None]
            whole = len(known) == len(axes)
            trail = self._trail(Joined(tuple(known))) if whole else None
            columns.append(Column(np.concatenate(parts), is_zero, trail))
        return tuple(columns)

    def shuffle(self, axis: Axis, sizes: Sequence[int], order: Sequence[int]) -> Axis | None:
        """Return a dimension split into several and joined in another order.

        None if its channels are a product, or if their trail is unknown.
        """
        columns = self.tidy(axis)
        if len(columns) != 1 or columns[0].trail is None:
            return None
        column = columns[0]
        labels = column.labels.reshape(tuple(sizes)).transpose(tuple(order)).ravel()
        trail = self._trail(Shuffled((columns[0].trail,), tuple(sizes), tuple(order)))
        return (replace(column, labels=labels, trail=trail),)

    def unify(self, a: Axis, b: Axis) -> None:
        """Make two axes of equal length lose the same indices."""
        left, right = list(self.tidy(a)), list(self.tidy(b))
        if not left or not right:
            why = self._why(b if left else a)
            self.pin((*left, *right), why)
            return
        if len(left) == 1 and len(right) == 1:
            self.meetings.append((left[0].trail, right[0].trail))
            self.labels.unite(left[0].labels, right[0].labels, self.reason)
            return
        for column in list(left):
            partner = next((x for x in right if self._same_shape(column, x)), None)
            if partner is not None:
                self.labels.unite(column.labels, partner.labels, self.reason)
                left.remove(column)
                right.remove(partner)
        for one, several in ((left, right), (right, left)):
            if len(one) == 1 and len(several) > 1:
                columns = [x.labels for x in several]
                self.labels.refine(one[0].labels, columns, self.reason)
                return
        self.pin((*left, *right))

    def _why(self, axis: Axis) -> str:
        """Return why an axis is pinned, if known."""
        labels = [x for column in axis for x in self.labels.expand(column.labels)]
        return next((why for x in labels if (why := self.labels.reason(int(x[0])))), "")

    def _same_shape(self, a: Column, b: Column) -> bool:
        """Whether two columns repeat their labels in the same pattern."""
        return np.array_equal(_pattern(self.roots(a)), _pattern(self.roots(b)))


def _pattern(labels: Indices) -> Indices:
    """Return labels numbered by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse]
