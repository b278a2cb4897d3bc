"""The entropy coder: encode numbers with known probabilities as bytes (asymmetric numeral systems).

Duda, "Asymmetric numeral systems", 2013, in its range variant: a state of 64 bits absorbs a symbol that
owns ``size`` of ``2**24`` slots, starting at ``start``, by
``state = state // size * 2**24 + start + state % size``, and moves out 32 bits whenever it would overflow.
Reading undoes this, last symbol first, so the writer processes the symbols backwards.

With several lanes, neighbouring symbols have separate states, which NumPy updates in parallel: large
files are read some 30 times faster, for 5 bytes per lane.

Writer, reader and bit counter have the same two methods, so that each model of the data is
written once and cannot differ between the two ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from lilliput.errors import StateError

PRECISION = 24
SLOTS = 1 << PRECISION
LOWEST = 1 << 32  # lower limit of a state between two symbols
LANES = 1024  # at most
_FEWEST = 64  # with fewer lanes a plain loop is faster
_BYTES_PER_LANE = 1024
_TOO_SHORT = "a stream of symbols ends too early"
_WORD = 0xFFFFFFFF
_SHIFT, _MASK = np.uint64(PRECISION), np.uint64(SLOTS - 1)
_LOWEST, _HALF = np.uint64(LOWEST), np.uint64(32)

Array = Any


Known = Any  # the symbols, None when reading


class Port(Protocol):
    """One end of a stream: a model passes probabilities and receives the symbols."""

    def bits(self, zeros: Array, known: Known) -> Array:
        """Return bits, each of which is 0 with a probability of ``zeros / 2**24``."""

    def symbols(self, bounds: Array, contexts: Array, known: Known) -> Array:
        """Return symbols: in context c, symbol s owns the slots ``bounds[c, s]`` to ``bounds[c, s + 1]``."""


class Meter:
    """Count the bits that symbols take.

    Examples
    --------
    >>> meter = Meter()
    >>> _ = meter.bits(np.array([SLOTS // 2, SLOTS // 4]), np.array([True, False]))
    >>> meter.cost
    3.0
    """

    def __init__(self) -> None:
        self.cost = 0.0

    def bits(self, zeros: Array, known: Known) -> Array:
        """Count known bits."""
        self._take(np.where(known, zeros, 0), np.where(known, SLOTS - zeros, zeros))
        return known

    def symbols(self, bounds: Array, contexts: Array, known: Known) -> Array:
        """Count known symbols."""
        starts = bounds[contexts, known]
        self._take(starts, bounds[contexts, known + 1] - starts)
        return known

    def _take(self, starts: Array, sizes: Array) -> None:
        self.cost += float((PRECISION - np.log2(sizes)).sum())


class Writer(Meter):
    """Collect symbols in the order in which they will be read, and then write them.

    Examples
    --------
    >>> writer = Writer()
    >>> bits = writer.bits(np.full(4, SLOTS // 2), np.array([True, False, True, True]))
    >>> reader = Reader(writer.finish(lanes=1), lanes=1)
    >>> reader.bits(np.full(4, SLOTS // 2), None).astype(int)
    array([1, 0, 1, 1])
    """

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[Array, Array]] = []

    def _take(self, starts: Array, sizes: Array) -> None:
        super()._take(starts, sizes)
        if len(starts):
            self._batches.append((starts.astype(np.uint32), sizes.astype(np.uint32)))

    def best_lanes(self) -> int:
        """Return the largest number of lanes that costs less than half a percent."""
        lanes = min(LANES, int(self.cost / 8) // _BYTES_PER_LANE)
        return lanes if lanes >= _FEWEST else 1

    def finish(self, lanes: int) -> bytes:
        """Return the stream: the final states, and then the words in the order of reading."""
        states, words = self._alone() if lanes == 1 else self._abreast(lanes)
        return bytes(states.astype("<u8").tobytes() + words.astype("<u4").tobytes())

    def _alone(self) -> tuple[Array, Array]:
        state, words = LOWEST, []
        for starts, sizes in reversed(self._batches):
            for start, size in zip(starts[::-1].tolist(), sizes[::-1].tolist(), strict=True):
                if state >= size << 40:
                    words.append(state & _WORD)
                    state >>= 32
                whole, rest = divmod(state, size)
                state = (whole << PRECISION) + rest + start
        return np.array([state], np.uint64), np.array(words[::-1], np.uint64)

    def _abreast(self, lanes: int) -> tuple[Array, Array]:
        states, words = np.full(lanes, LOWEST, np.uint64), [np.zeros(0, np.uint64)]
        limit = np.uint64(40)
        for starts, sizes in reversed(self._batches):
            last = (len(starts) - 1) // lanes * lanes
            for at in range(last, -1, -lanes):
                size, start = (x[at : at + lanes].astype(np.uint64) for x in (sizes, starts))
                held = states[: len(size)]
                is_full = held >= size << limit
                if is_full.any():
                    words.append((held[is_full] & np.uint64(_WORD))[::-1])
                    held = np.where(is_full, held >> _HALF, held)
                whole = held // size
                states[: len(size)] = (whole << _SHIFT) + (held - whole * size) + start
        return states, np.concatenate(words)[::-1]


class Reader:
    """Read the symbols of a stream, given the same probabilities as its writer."""

    def __init__(self, data: bytes, lanes: int) -> None:
        if not 1 <= lanes <= LANES or len(data) < 8 * lanes or len(data) % 4:
            raise damaged("a stream of symbols has the wrong length")
        self._states = np.frombuffer(data, "<u8", lanes).astype(np.uint64)
        self._words = np.frombuffer(data, "<u4", offset=8 * lanes).astype(np.uint64)
        if (self._states < _LOWEST).any():
            raise damaged("a stream of symbols starts with an impossible state")
        self._at = 0
        self._state = int(self._states[0])
        self._plain: list[int] = self._words.tolist() if lanes == 1 else []

    def bits(self, zeros: Array, known: Known) -> Array:
        """Read bits."""
        if len(self._states) == 1:
            return self._bits_alone(zeros)
        zeros, found = zeros.astype(np.uint64), np.zeros(len(zeros), bool)
        for at in range(0, len(zeros), len(self._states)):
            zero = zeros[at : at + len(self._states)]
            held = self._states[: len(zero)]
            slot = held & _MASK
            is_one = slot >= zero
            size = np.where(is_one, np.uint64(SLOTS) - zero, zero)
            found[at : at + len(zero)] = is_one
            self._refill(size * (held >> _SHIFT) + slot - np.where(is_one, zero, np.uint64(0)))
        return found

    def symbols(self, bounds: Array, contexts: Array, known: Known) -> Array:
        """Read symbols."""
        if len(self._states) == 1:
            return self._symbols_alone(bounds.tolist(), contexts.tolist())
        count = bounds.shape[1] - 1
        # The contexts stacked form one list to search.
        offsets = np.arange(len(bounds), dtype=np.int64)[:, None] * SLOTS
        starts = (bounds[:, :-1] + offsets).ravel()
        found = np.zeros(len(contexts), np.int64)
        for at in range(0, len(contexts), len(self._states)):
            context = contexts[at : at + len(self._states)]
            held = self._states[: len(context)]
            slot = (held & _MASK).astype(np.int64)
            symbol = np.searchsorted(starts, slot + context * SLOTS, "right") - 1 - context * count
            start = bounds[context, symbol]
            size = (bounds[context, symbol + 1] - start).astype(np.uint64)
            found[at : at + len(context)] = symbol
            self._refill(size * (held >> _SHIFT) + (slot - start).astype(np.uint64))
        return found

    def close(self) -> None:
        """Check that everything has been read."""
        if len(self._states) == 1:
            self._states[0] = self._state
        if self._at != len(self._words) or (self._states != _LOWEST).any():
            raise damaged("a stream of symbols does not end where it should")

    def _refill(self, states: Array) -> None:
        is_low = states < _LOWEST
        count = int(np.count_nonzero(is_low))
        if count:
            words = self._words[self._at : self._at + count]
            if len(words) < count:
                raise damaged(_TOO_SHORT)
            states[is_low] = states[is_low] << _HALF | words
            self._at += count
        self._states[: len(states)] = states

    def _bits_alone(self, zeros: Array) -> Array:
        state, at, words = self._state, self._at, self._plain
        found = bytearray(len(zeros))
        with _whole():
            for i, zero in enumerate(zeros.tolist()):
                slot = state & (SLOTS - 1)
                if slot < zero:
                    state = zero * (state >> PRECISION) + slot
                else:
                    found[i] = 1
                    state = (SLOTS - zero) * (state >> PRECISION) + slot - zero
                if state < LOWEST:
                    state = state << 32 | words[at]
                    at += 1
        self._state, self._at = state, at
        return np.frombuffer(found, np.uint8).astype(bool)

    def _symbols_alone(self, bounds: list[list[int]], contexts: list[int]) -> Array:
        state, at, words = self._state, self._at, self._plain
        found = [0] * len(contexts)
        with _whole():
            for i, context in enumerate(contexts):
                held, slot = bounds[context], state & (SLOTS - 1)
                symbol = bisect_right(held, slot) - 1
                start = held[symbol]
                state = (held[symbol + 1] - start) * (state >> PRECISION) + slot - start
                found[i] = symbol
                if state < LOWEST:
                    state = state << 32 | words[at]
                    at += 1
        self._state, self._at = state, at
        return np.array(found, np.int64)


@contextmanager
def _whole() -> Iterator[None]:
    """Refuse a stream in which there are fewer words than are read."""
    try:
        yield
    except IndexError:
        raise damaged(_TOO_SHORT) from None


def damaged(why: str) -> StateError:
    """Return the error for a file with invalid content."""
    return StateError(f"not a readable compact file: {why}; take it from a backup.")


def entropy(counts: Array) -> float:
    """Return the total bits of symbols if their frequencies are known.

    Examples
    --------
    >>> entropy(np.array([4, 4]))
    8.0
    """
    held = counts[counts > 0].astype(float)
    total = held.sum()
    return float((held * (math.log2(total) - np.log2(held))).sum()) if len(held) else 0.0
