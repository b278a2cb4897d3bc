"""Predict weights before they are read: models of masks and of values, row by row.

A matrix is read row after row. The position of nonzero weights is predicted by how many the column has so
far, and by its neighbours: those one and two rows earlier and, for layers on images,
those around the same position one line earlier (``stride`` rows). A value is predicted by the values
before it, and by the signs of the same neighbours. A unit with few weights in the previous layer has few
readers in the next one, so their number is a hint. Only the settings have to be transmitted.

All sums are of integers and everything else is one IEEE operation at a time: both ends compute the same
numbers on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.compact.ans import SLOTS, Port

Array = Any

STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)  # of the prior that columns are alike
_RAREST = 1 << 8  # slots of the least likely bit
_PATTERNS, _COUNTS = 24, 24  # contexts by neighbours, and by the column so far
_STEPS = np.array([1, 2, 4, 8, 16])  # classes of counts
_MOST_CLASSES = 48
_LARGEST_STRIDE = 512  # rows
HINTS = 6
# The number of neighbours of a pattern, where three is many.
_NEAR = np.array([min((i & 1) + (i >> 1 & 1) + (i >> 2 & 1) + (i >> 3), 3) for i in range(24)])


@dataclass(frozen=True)
class Settings:
    """How a matrix is read.

    Parameters
    ----------
    strength : int
        Which of ``STRENGTHS`` the prior of a column has.
    stride : int
        How many rows earlier the neighbour above is, 0 for none.
    has_rows : bool
        Whether each row starts with its number of nonzero weights, by powers of two.
    has_signs : bool
        Whether values are predicted by the signs of their neighbours.
    """

    strength: int = 2
    stride: int = 0
    has_rows: bool = False
    has_signs: bool = False


class SymbolModel:
    """Symbols whose probability grows with their count, separately for each context."""

    def __init__(self, count: int, contexts: int = 1) -> None:
        self._counts = np.ones((contexts, count), np.int64)
        self._seen, self._fresh = 0, 0
        self._bounds = self._spread()

    def code(self, port: Port, contexts: Array, known: Array | None) -> Array:
        """Write or read symbols, in pieces that grow with the number of known symbols."""
        if self._counts.shape[1] == 1:
            return np.zeros(len(contexts), np.int64)
        found, at = np.zeros(len(contexts), np.int64), 0
        while at < len(contexts):
            end = at + max(16, self._seen // 4)
            given = None if known is None else known[at:end]
            found[at:end] = port.symbols(self._bounds, contexts[at:end], given)
            self._learn(contexts[at:end], found[at:end])
            at = end
        return found

    def _learn(self, contexts: Array, symbols: Array) -> None:
        shape = self._counts.shape
        places = contexts * shape[1] + symbols
        self._counts += 2 * np.bincount(places, minlength=self._counts.size).reshape(shape)
        self._seen += len(symbols)
        self._fresh += len(symbols)
        if self._fresh * 16 >= min(self._seen, 1 << 20):
            self._bounds, self._fresh = self._spread(), 0

    def _spread(self) -> Array:
        """Return which slots each symbol owns: at least one, the others by its count."""
        counts = self._counts
        free = SLOTS - counts.shape[1]
        sizes = 1 + counts * free // counts.sum(1, keepdims=True)
        rest = SLOTS - sizes.sum(1)
        sizes[np.arange(len(sizes)), counts.argmax(1)] += rest
        bounds = np.zeros((len(sizes), sizes.shape[1] + 1), np.int64)
        np.cumsum(sizes, 1, out=bounds[:, 1:])
        return bounds


class Correction:
    """How much more often something happens in a context than expected."""

    def __init__(self, contexts: int, doubt: float) -> None:
        self._hits = np.zeros(contexts)
        self._expected = np.zeros(contexts)  # in slots: integers, so that no sum is rounded
        self._doubt = doubt  # occurrences at which a context has half the weight

    def apply(self, shares: Array, contexts: Array) -> Array:
        """Return corrected probabilities."""
        return (
            shares * ((self._hits + self._doubt) / (self._expected / SLOTS + self._doubt))[contexts]
        )

    def learn(self, shares: Array, contexts: Array, row: Array) -> None:
        """Count the expected and the actual occurrences in each context."""
        self._hits += np.bincount(contexts, row, len(self._hits))
        self._expected += np.bincount(contexts, _slots(shares), len(self._hits))


class MaskModel:
    """The positions of nonzero weights, by column, neighbours and optionally by row."""

    def __init__(self, columns: int, density: float, settings: Settings) -> None:
        self._prior = STRENGTHS[settings.strength]
        self._density = density
        self._settings = settings
        self._counts = np.zeros(columns)
        self._rows = 0
        self._by_pattern = Correction(_PATTERNS, doubt=0.5)
        self._by_count = Correction(_COUNTS, doubt=4.0)
        self._by_hint = Correction(HINTS, doubt=2.0)
        self._classes = SymbolModel(_MOST_CLASSES)
        self._sums = np.zeros(_MOST_CLASSES)
        self._seen = np.zeros(_MOST_CLASSES)

    def code(self, port: Port, before: Array, hint: Array | None, known: Array | None) -> Array:
        """Write or read the next row; ``before`` contains all earlier ones."""
        kind = self._code_class(port, known) if self._settings.has_rows else -1
        if kind == 0:
            self._rows += 1
            return np.zeros(len(self._counts), bool)
        pattern = neighbours(before, self._settings.stride)
        # The column alone, then with its neighbours, corrected for the information that they share.
        count = classes_of(self._counts) + 6 * _NEAR[pattern]
        start = (self._counts + self._prior * self._density) / (self._rows + self._prior)
        first = start if hint is None else self._by_hint.apply(start, hint)
        second = self._by_pattern.apply(first, pattern)
        third = self._by_count.apply(second, count)
        if kind > 0:
            factor = self._mean(kind) * SLOTS / int(_slots(third).sum())
            start, first, second, third = (x * factor for x in (start, first, second, third))
        row = port.bits(SLOTS - _slots(third), known)
        if hint is not None:
            self._by_hint.learn(start, hint, row)
        self._by_pattern.learn(first, pattern, row)
        self._by_count.learn(second, count, row)
        self._counts += row
        self._rows += 1
        if kind > 0:
            self._sums[kind] += np.count_nonzero(row)
            self._seen[kind] += 1
        return row

    def _code_class(self, port: Port, known: Array | None) -> int:
        """Write or read how many bits the number of weights in the row has."""
        given = None
        if known is not None:
            given = np.array([int(np.count_nonzero(known)).bit_length()])
        return int(self._classes.code(port, np.zeros(1, np.int64), given)[0])

    def _mean(self, kind: int) -> float:
        middle = math.ldexp(1.5, kind - 1) - 0.5
        return float((self._sums[kind] + middle) / (self._seen[kind] + 1))


def code_matrix(
    port: Port,
    settings: Settings,
    shape: tuple[int, int],
    signs: Array,
    nonzeros: int | None,
    codes: Array | None,
    hints: Array | None = None,
) -> tuple[Array, Array]:
    """Write or read a matrix; return where it has values, and their codes, 0 elsewhere.

    Parameters
    ----------
    port : Port
        A writer, a reader or a meter.
    settings : Settings
        How to read it.
    shape : tuple of int
        Rows and columns.
    signs : array
        Per code, -1, 0 or 1.
    nonzeros : int, optional
        The number of values; None: everywhere.
    codes : array, optional
        The codes to write, -1 where there is no value.
    hints : array, optional
        For each entry, how much is known to depend on it, as one of ``HINTS`` classes.
    """
    rows, columns = shape
    masks = np.ones(shape, bool) if nonzeros is None else np.zeros(shape, bool)
    found = np.zeros(shape, np.int32)
    if not found.size or (nonzeros is None and len(signs) < 2):
        return masks, found  # nothing is coded
    density = (nonzeros or 0) + 1
    model = MaskModel(columns, density / (rows * columns + 2), settings)
    values = SymbolModel(len(signs), 3 if settings.has_signs else 1)
    signed = np.zeros(shape if settings.has_signs else (0, columns), np.int8)
    for i in range(rows):
        known = None if codes is None else codes[i]
        if nonzeros is not None:
            hint = None if hints is None else hints[i]
            masks[i] = model.code(port, masks[:i], hint, None if known is None else known >= 0)
        places = np.flatnonzero(masks[i])
        if not len(places):
            continue
        contexts = np.zeros(len(places), np.int64)
        if settings.has_signs:
            contexts = _sign_context(signed[:i], settings.stride)[places]
        row = values.code(port, contexts, None if known is None else known[places])
        found[i, places] = row
        if settings.has_signs:
            signed[i, places] = signs[row]
    return masks, found


def neighbours(before: Array, stride: int) -> Array:
    """Return which of the 24 patterns of earlier neighbours each column has."""
    none = np.zeros(before.shape[1], np.int64)

    def row(back: int) -> Array:
        return before[len(before) - back].astype(np.int64) if back <= len(before) else none

    found = row(1) + 2 * row(2)
    if stride:
        found = found + 4 * row(stride) + 8 * (row(stride - 1) + row(stride + 1))
    return found


def classes_of(counts: Array) -> Array:
    """Return which of ``HINTS`` classes each count belongs to.

    Examples
    --------
    >>> classes_of(np.array([0, 1, 3, 40]))
    array([0, 1, 2, 5])
    """
    return np.searchsorted(_STEPS, counts, "right")


def find_stride(mask: Array) -> int:
    """Return the distance between the most similar rows beyond neighbours, 0 if none are similar.

    Examples
    --------
    >>> line = np.random.default_rng(0).random((7, 50)) < 0.1
    >>> find_stride(np.concatenate([line, line, line]))
    7
    """
    rows = len(mask)
    last = min(rows // 2, _LARGEST_STRIDE)
    if last < 3:
        return 0
    held = mask.astype(np.float32)
    alike = [float((held[d:] * held[:-d]).sum()) / (rows - d) for d in range(3, last + 1)]
    best = int(np.argmax(alike))
    return best + 3 if alike[best] > 1.5 * float(np.median(alike)) else 0


def _sign_context(before: Array, stride: int) -> Array:
    """Return 0, 1 or 2 for neighbours that are negative, of no sign, or positive."""
    total = np.zeros(before.shape[1], np.int64)
    around = (stride - 1, stride, stride + 1, 2 * stride) if stride else ()
    for back in (1, 2, *around):
        if back <= len(before):
            total += before[len(before) - back]
    return np.sign(total) + 1


def _slots(shares: Array) -> Array:
    """Return probabilities as integer numbers of slots, none of them impossible or certain."""
    slots = (np.minimum(shares, 1.0) * SLOTS).astype(np.int64)
    return np.clip(slots, _RAREST, SLOTS - _RAREST)
