"""Stages: channels mixed by shuffles, how many of them may be kept, and their order afterwards.

A shuffle reorders its channels, half of them pass the next unit unchanged, are shuffled
again, and so on (ShuffleNet). Which layer reads a channel depends on its position, and
its position on how many there are. So all layers of a stage shrink in the same proportion: for
each smaller width the trails are followed again, which shows how many channels go from each layer to
each other. As many are kept of the channels that take the same path now, in their new order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np

from lilliput.graph.labels import Flags, Indices, Labels
from lilliput.graph.trails import Made, Shuffled, Trail

Dimension = tuple[str, int]  # the name of a tensor, and one of its axes


@dataclass(frozen=True, eq=False)
class Route:
    """All operations on the channels of a stage.

    Parameters
    ----------
    trails : tuple of Trail
        Each after its sources.
    meetings : tuple of pairs of Trail
        Trails with the same channels.
    rows : tuple of (Trail, int)
        Dimensions that are read in this number of rows, each separately.
    ragged : mapping of str to (Trail, int)
        The inputs of grouped convolutions: the meaning of an index depends on the row.
    """

    trails: tuple[Trail, ...]
    meetings: tuple[tuple[Trail, Trail], ...]
    rows: tuple[tuple[Trail, int], ...]
    ragged: Mapping[str, tuple[Trail, int]]

    @property
    def made(self) -> dict[Hashable, Made]:
        """The start of each trail, by the dimension of the parameter."""
        return {trail.key: trail for trail in self.trails if isinstance(trail, Made)}

    def follow(self, scale: Fraction) -> Slots | None:
        """Return the positions of channels on the same route at a smaller scale, or None."""
        labels = Labels()
        at: dict[Trail, Indices] = {}
        for trail in self.trails:
            if isinstance(trail, Made):
                size = scale * trail.size
                found = labels.fresh(trail.key, int(size)) if size.denominator == 1 else None
            else:
                found = trail.follow([at[source] for source in trail.sources], scale)
            if found is None:
                return None
            at[trail] = found
        for a, b in self.meetings:
            labels.unite(at[a], at[b], "")
        if any(len(at[trail]) % count for trail, count in (*self.rows, *self.ragged.values())):
            return None
        return Slots(self, at, labels)


@dataclass(frozen=True, eq=False)
class Slots:
    """The positions for channels at one width."""

    route: Route
    at: Mapping[Trail, Indices]
    labels: Labels

    def find(self, trail: Trail) -> Indices:
        """Return the slot at each index of a dimension."""
        return self.labels.find(self.at[trail])

    def families(self) -> dict[int, Indices]:
        """Return slots that appear in the same dimensions and rows, by a code of these."""
        rng = np.random.default_rng(0)  # the same codes for each width
        codes = np.zeros(self.labels.count, np.uint64)
        made = self.route.made.values()
        cells = [self.find(trail) for trail in made]
        rows = (*self.route.rows, *self.route.ragged.values())
        cells += [row for trail, count in rows for row in np.split(self.find(trail), count)]
        for cell in cells:
            np.add.at(codes, cell, np.uint64(rng.integers(1, 2**62)))
        slots = np.unique(np.concatenate([self.find(trail) for trail in made]))
        return {int(code): slots[codes[slots] == code] for code in np.unique(codes[slots])}


@dataclass(eq=False)
class Stage:
    """Channels that are mixed by shuffles.

    Parameters
    ----------
    route : Route
        The operations on them.
    classes : mapping of trail to array
        The class of each channel in the analysis, at the start of its trail.
    ragged : mapping of str to array
        The classes of the inputs of grouped convolutions, (groups, inputs per group).
    """

    route: Route
    classes: Mapping[Hashable, Indices]
    ragged: Mapping[str, Indices]
    _kept: dict[int, Indices | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.size = gcd(*(trail.size for trail in self.route.made.values()))
        full = self.route.follow(Fraction(1))
        if full is None:
            raise ValueError("channels can no longer take the same path")
        pairs = {
            int(slot): int(root)
            for key, trail in self.route.made.items()
            for slot, root in zip(full.find(trail), self.classes[key], strict=True)
        }
        self.is_faithful = self._is_one_to_one(full, pairs)
        self._codes, members = [], []
        for code, slots in full.families().items():
            self._codes.append(code)
            members.append(np.sort([pairs[int(slot)] for slot in slots]))
        self.roots: Indices = np.concatenate(members)
        numbers = np.repeat(np.arange(len(members)), [len(x) for x in members])
        order = np.argsort(self.roots)
        self.roots, self.rows = self.roots[order], numbers[order]

    def _is_one_to_one(self, full: Slots, pairs: Mapping[int, int]) -> bool:
        """Whether trails and classes correspond: no class is split, and no two are joined."""
        same = all(
            pairs[int(slot)] == int(root)
            for key, trail in self.route.made.items()
            for slot, root in zip(full.find(trail), self.classes[key], strict=True)
        )
        return same and len(set(pairs.values())) == len(pairs)

    def width(self, step: int) -> int:
        """Return the number of channels of the narrowest layer at a step."""
        return min(trail.size for trail in self.route.made.values()) * step // self.size

    def kept(self, step: int) -> Indices | None:
        """Return how many channels of each row are kept at a step of ``size``; None if that is impossible."""
        if step not in self._kept:
            self._kept[step] = self._count(step)
        return self._kept[step]

    def _count(self, step: int) -> Indices | None:
        slots = self.route.follow(Fraction(step, self.size))
        found = {} if slots is None else slots.families()
        if not found or not found.keys() <= set(self._codes):
            return None
        counts = np.array([len(found.get(code, ())) for code in self._codes])
        return counts if (counts <= np.bincount(self.rows)).all() else None

    def can_shrink(self) -> bool:
        """Whether there is a smaller width at all."""
        return any(self.kept(step) is not None for step in range(self.size - 1, 0, -1))

    def fit_width(self, removed: Flags) -> Flags:
        """Undo removals until the number of kept channels fits a width exactly."""
        _, counts = self._fit(self._alive(removed))
        removed = removed.copy()
        for row, count in enumerate(counts):
            roots = self.roots[self.rows == row]
            gone = roots[removed[roots]]
            removed[gone[: count - (len(roots) - len(gone))]] = False
        return removed

    def _alive(self, removed: Flags) -> Indices:
        stays = ~removed[self.roots]
        return np.bincount(self.rows[stays], minlength=len(self._codes))

    def _fit(self, alive: Indices) -> tuple[int, Indices]:
        """Return the smallest step with room for this number of channels in each row."""
        least = -(-int(alive.sum()) * self.size // len(self.roots))
        for step in range(max(least, 1), self.size):
            counts = self.kept(step)
            if counts is not None and (counts >= alive).all():
                return step, counts
        return self.size, np.bincount(self.rows)

    def orders(self, removed: Flags) -> dict[Dimension, Indices]:
        """Return the kept indices of each dimension in their new order."""
        alive = self._alive(removed)
        step, counts = self._fit(alive)
        slots = self.route.follow(Fraction(step, self.size))
        if slots is None or not np.array_equal(counts, alive):
            raise ValueError("the removal does not fit a width; call fit_width() first")
        families, class_of = slots.families(), np.zeros(slots.labels.count, np.int64)
        for row, code in enumerate(self._codes):
            roots = self.roots[self.rows == row]
            class_of[families.get(code, np.zeros(0, np.int64))] = roots[~removed[roots]]
        found: dict[Any, Indices] = {}
        for key, trail in self.route.made.items():
            found[key] = _positions(self.classes[key], class_of[slots.find(trail)])
        for name, (source, count) in self.route.ragged.items():
            rows = zip(self.ragged[name], np.split(slots.find(source), count), strict=True)
            found[name, 1] = np.stack([_positions(own, class_of[row]) for own, row in rows])
        return found


def _positions(classes: Indices, wanted: Indices) -> Indices:
    """Return the position of each wanted class; repeated classes are taken in turn."""
    places: dict[int, list[int]] = {}
    for position in range(len(classes) - 1, -1, -1):
        places.setdefault(int(classes[position]), []).append(position)
    return np.array([places[int(x)].pop() for x in wanted], np.int64)


def find_routes(
    trails: Sequence[Trail],
    meetings: Iterable[tuple[Trail | None, Trail | None]],
    rows: Iterable[tuple[Trail | None, int]],
    ragged: Mapping[str, tuple[Trail | None, int]],
) -> list[Route]:
    """Return the route of each stage: everything connected to a shuffle."""
    known = [(a, b) for a, b in meetings if a is not None and b is not None]
    stage = _connect(trails, known)
    found = []
    for number in sorted({stage[x] for x in trails if isinstance(x, Shuffled)}):
        found.append(
            Route(
                tuple(x for x in trails if stage[x] == number),
                tuple(pair for pair in known if stage[pair[0]] == number),
                tuple((x, n) for x, n in rows if x is not None and stage[x] == number),
                {
                    name: (x, n)
                    for name, (x, n) in ragged.items()
                    if x is not None and stage[x] == number
                },
            )
        )
    return found


def _connect(trails: Sequence[Trail], known: list[tuple[Trail, Trail]]) -> dict[Trail, int]:
    """Return a number for each trail, equal for connected trails."""
    labels = Labels()
    keys: dict[Hashable, Made] = {}
    number = {trail: int(labels.fresh(trail, 1)[0]) for trail in trails}
    pairs = [(x, source) for x in trails for source in x.sources] + known
    # One dimension may be read twice.
    pairs += [(x, keys.setdefault(x.key, x)) for x in trails if isinstance(x, Made)]
    if pairs:
        a, b = (np.array([number[pair[i]] for pair in pairs]) for i in (0, 1))
        labels.unite(a, b, "")
    roots = labels.find(np.array([number[x] for x in trails], np.int64))
    return dict(zip(trails, roots.tolist(), strict=True))
