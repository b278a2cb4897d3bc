"""Labels: every index of every dimension has one, and union-find determines which are the same channel.

All operations take whole arrays. Label 0 means "no channel": an index that can never be removed.
A label can be *refined*: replaced by a tuple of labels, if its axis turns out to be a
product (heads × head size). An index disappears if any label of its tuple is removed.

>>> labels = Labels()
>>> conv1, conv2, norm = (labels.fresh(key, 3) for key in ("conv1", "conv2", "norm"))
>>> labels.unite(conv1, norm, "")
>>> labels.unite(norm, conv2[::-1], "")
>>> bool((labels.find(conv2) == labels.find(conv1)[::-1]).all())
True
>>> labels.pin(conv1[:1], "the model's output")
>>> labels.is_pinned(conv2).tolist(), labels.reason(conv2[2])
([False, False, True], "the model's output")
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

_FREE = np.iinfo(np.int64).max
_MOST_FACTORS = 32  # of a product; more than any real model has


class Labels:
    """Union-find over arrays, with reasons for pinned labels, and refinements that persist between passes."""

    def __init__(self) -> None:
        self._count = 1
        self._starts: dict[Hashable, int] = {}
        self._tuple_of = np.full(1, -1)
        self._tuples: list[Indices] = [np.zeros((0, 0), np.int64)]
        self._tuple_count = 0
        self.refined = False
        self.may_refine = True  # if False, products are pinned instead
        self.restart()

    def restart(self) -> None:
        """Discard all unions and pins, but keep labels and refinements."""
        self._parent = np.arange(max(self._count, 1024))
        self._reason = np.full(len(self._parent), _FREE)
        self._reasons: list[str] = ["not a channel"]
        self._reason[0] = 0
        self.refined = False

    @property
    def count(self) -> int:
        """One more than the largest label."""
        return self._count

    def fresh(self, key: Hashable, size: int) -> Indices:
        """Return ``size`` labels; always the same ones for the same key."""
        start = self._starts.get(key)
        if start is None:
            start = self._starts[key] = self._count
            self._count += size
            self._grow()
        return np.arange(start, start + size)

    def _grow(self) -> None:
        held = len(self._parent)
        if self._count > held:
            size = max(self._count, 2 * held)
            self._parent = np.concatenate([self._parent, np.arange(held, size)])
            self._reason = np.concatenate([self._reason, np.full(size - held, _FREE)])
        known = len(self._tuple_of)
        if self._count > known:
            more = np.full(max(self._count, 2 * known) - known, -1)
            self._tuple_of = np.concatenate([self._tuple_of, more])

    def find(self, labels: Indices) -> Indices:
        """Return the representative of each label's class."""
        parent = self._parent
        roots = parent[labels]
        while True:
            further = parent[roots]
            if (further == roots).all():
                parent[labels] = roots
                return roots
            roots = further

    def unite(self, a: Indices, b: Indices, reason: str) -> None:
        """Declare each label of ``a`` to be the same channel as its partner in ``b``.

        A partner that is not a channel pins the other, with the given reason.
        """
        fixed = (a == 0) | (b == 0)
        if fixed.any():
            self.pin(np.concatenate([a[fixed], b[fixed]]), reason)
            a, b = a[~fixed], b[~fixed]
        old = np.concatenate([self.find(a), self.find(b)])
        a, b = old[: len(a)], old[len(a) :]
        while True:
            low, high = np.minimum(a, b), np.maximum(a, b)
            differs = low != high
            if not differs.any():
                break
            # Several pairs may share their higher root: the lowest partner wins, the others are
            # repeated.
            np.minimum.at(self._parent, high[differs], low[differs])
            a, b = self.find(low[differs]), self.find(high[differs])
        np.minimum.at(self._reason, self.find(old), self._reason[old])

    def pin(self, labels: Indices, reason: str) -> None:
        """Declare that these channels cannot be removed."""
        self._reasons.append(reason)
        roots = self.find(np.unique(labels))
        free = roots[self._reason[roots] == _FREE]
        self._reason[free] = len(self._reasons) - 1

    def is_pinned(self, labels: Indices) -> Flags:
        """Return which labels are pinned."""
        pinned: Flags = self._reason[self.find(labels)] != _FREE
        return pinned

    def reason(self, label: int) -> str:
        """Return why a label is pinned, or an empty string if it is not."""
        code = self._reason[self.find(np.array([label]))[0]]
        return "" if code == _FREE else self._reasons[code]

    # -- refinement --------------------------------------------------------------------------------

    def refine(self, labels: Indices, columns: Sequence[Indices], reason: str) -> None:
        """Replace the class of each label by the tuple of its partners in ``columns``."""
        if self._tuple_of[labels].max(initial=-1) >= 0:
            raise ValueError("these labels are refined already: expand them first")
        roots, first, inverse = np.unique(self.find(labels), return_index=True, return_inverse=True)
        factors = [factor for column in columns for factor in self.expand(column)]
        # A product that contains itself, at any depth, would be refined endlessly.
        is_circular = any(np.isin(self.find(factor), roots).any() for factor in factors)
        if is_circular or len(factors) > _MOST_FACTORS or not self.may_refine:
            for column in (labels, *factors):
                self.pin(column, reason)
            return
        for column in columns:  # a class at several positions is one channel at all of them
            self.unite(column, column[first][inverse], reason)
        pinned = self.is_pinned(labels)
        for column in columns:
            self.pin(column[pinned], reason)
        width = len(columns)
        rows = np.zeros((len(roots), width), np.int64)
        for k, column in enumerate(columns):
            rows[:, k] = column[first]
        everything = np.arange(1, self._count)
        members = self.find(everything)
        number = np.full(self._count, -1)
        number[roots] = np.arange(len(roots))
        place = number[members]
        hit = (place >= 0) & (self._tuple_of[everything] < 0)
        self._tuple_of[everything[hit]] = self._tuple_count + place[hit]
        self._tuples.append(rows)
        self._tuple_count += len(roots)
        self.refined = True

    def expand(self, labels: Indices) -> list[Indices]:
        """Return the columns of these labels after applying refinements."""
        found, waiting = [], [labels]
        while waiting:
            labels = waiting.pop()
            codes = self._tuple_of[labels]
            hit = codes >= 0
            if not hit.any():
                found.append(labels)
                continue
            table = self._table()
            columns = np.zeros((len(labels), table.shape[1]), np.int64)
            columns[:, 0] = labels
            columns[hit] = table[codes[hit]]
            waiting += [column for column in columns.T[::-1] if column.any()]
        return found

    def _table(self) -> Indices:
        width = max(rows.shape[1] for rows in self._tuples)
        if len(self._tuples) > 1:
            padded = [np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in self._tuples]
            self._tuples = [np.concatenate(padded)]
        return self._tuples[0]
