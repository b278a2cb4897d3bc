"""From labels to groups: classes with the same footprint, and one factor of each product."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from lilliput.graph.analysis import Analysis, analyse
from lilliput.graph.axes import Column
from lilliput.graph.groups import ChannelGroups, Group, Pinned, Slice, unit_of
from lilliput.graph.ir import Graph
from lilliput.graph.labels import Indices
from lilliput.graph.norms import find_norm
from lilliput.graph.stages import Dimension, Stage


def find_groups(graph: Graph) -> ChannelGroups:
    """Return the channels of a model that can be removed, with everything removed along with each."""
    return collect(analyse(graph))


def collect(analysis: Analysis) -> ChannelGroups:
    """Return the groups of an analysed graph."""
    _pin_what_masks_cannot_show(analysis)
    groups = tuple(form_groups(analysis, _columns(analysis)))
    pinned = find_pinned(analysis, groups)
    unreached = analysis.graph.unreached()
    return ChannelGroups(groups, pinned, unreached, analysis.walk.unknown, analysis)


def _pin_what_masks_cannot_show(analysis: Analysis) -> None:
    """Pin channels with a mean or sum over them that a masked model cannot compute without them."""
    walk = analysis.walk
    norms = [find_norm(analysis, statistic) for statistic in walk.statistics]
    calls: dict[str, set[Any]] = {}
    for norm in norms:
        if norm is not None:
            counted = tuple(tuple(walk.labels.find(labels)) for labels in norm.columns)
            calls.setdefault(norm.path, set()).add((len(norm.source.shape), counted))
    for norm, statistic in zip(norms, walk.statistics, strict=True):
        # A norm that is called on different channels cannot know which of them to exclude.
        if norm is None or len(calls[norm.path]) > 1:
            walk.op = statistic.op
            axis = tuple(Column(labels) for labels in statistic.columns)
            walk.pin(axis, because=f"{statistic.what} is computed inside a larger module")


def _columns(analysis: Analysis) -> dict[Dimension, list[Indices]]:
    """Return the classes along each dimension of each parameter."""
    found = {}
    for name, value in analysis.axes.items():
        for dim in range(len(value.shape)):
            columns = analysis.columns(name, dim)
            if any(column.any() for column in columns):
                found[name, dim] = columns
    return found


def form_groups(analysis: Any, columns: dict[Dimension, list[Indices]]) -> list[Group]:
    """Return the groups of an analysis, given the classes along each dimension of each parameter."""
    stages = [x for x in analysis.stages if not analysis.walk.labels.is_pinned(x.roots).any()]
    mixed = np.concatenate([np.zeros(0, np.int64), *(stage.roots for stage in stages)])
    families = [roots[~np.isin(roots, mixed)] for roots in _families(columns)]
    chosen = _choose(analysis, columns, [roots for roots in families if len(roots)])
    units: list[tuple[Indices, Stage | None]] = [(roots, None) for roots in chosen]
    units += [(stage.roots, stage) for stage in stages]
    named: set[str] = set()
    units.sort(key=lambda x: int(x[0][0]))
    listed = [(place, column) for place, found in columns.items() for column in found]
    where = _find_columns([column for _, column in listed], [roots for roots, _ in units])
    groups = [
        _group(analysis, [listed[i] for i in found], roots, stage, named)
        for found, (roots, stage) in zip(where, units, strict=True)
    ]
    return [group for group in groups if any(piece.is_output for piece in group.slices)]


def _find_columns(columns: list[Indices], units: list[Indices]) -> list[list[int]]:
    """Return, for each unit, the columns that one of its classes is in."""
    roots = np.concatenate([np.zeros(0, np.int64), *units])
    numbers = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    order = np.argsort(roots, kind="stable")
    roots, numbers = roots[order], numbers[order]
    found: list[list[int]] = [[] for _ in units]
    for i, column in enumerate(columns):
        seen = np.unique(column)
        first, last = (np.searchsorted(roots, seen, side) for side in ("left", "right"))
        for unit in np.unique(numbers[_spans(first, last)]).tolist():
            found[unit].append(i)
    return found


def _spans(first: Indices, last: Indices) -> Indices:
    """Return all positions from each first up to its last."""
    lengths = last - first
    ends = np.cumsum(lengths)
    inside: Indices = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        first - ends + lengths, lengths
    )
    return inside


def _families(columns: dict[Dimension, list[Indices]]) -> list[Indices]:
    """Group the classes that appear in exactly the same dimensions."""
    rng = random.Random(0)
    pairs: list[tuple[Indices, int]] = []
    for listed in columns.values():
        for column in listed:  # factors of a product are in the same dimensions, but separate
            seen = np.unique(column)
            pairs.append((seen[seen > 0], rng.randrange(1, 2**62)))
    if not pairs:
        return []
    roots = np.unique(np.concatenate([seen for seen, _ in pairs]))
    footprint = np.zeros(len(roots), np.uint64)
    for seen, code in pairs:
        footprint[np.searchsorted(roots, seen)] += np.uint64(code)
    _, first, inverse = np.unique(footprint, return_index=True, return_inverse=True)
    parts = np.split(
        roots[np.argsort(inverse, kind="stable")], np.cumsum(np.bincount(inverse))[:-1]
    )
    return [parts[k] for k in np.argsort(first)]


def _choose(
    analysis: Any, columns: dict[Dimension, list[Indices]], families: list[Indices]
) -> list[Indices]:
    """Return one factor of each product: whole heads if possible, otherwise the finer factor.

    Removing half of the rows and half of the columns of a grid would remove three quarters of it.
    """
    walk = analysis.walk
    products = [listed for listed in columns.values() if len(listed) > 1]
    family_of: dict[int, int] = {}
    if products:
        family_of = {int(root): i for i, roots in enumerate(families) for root in roots}
    rivals: dict[int, set[int]] = {}
    for listed in products:
        present = [{family_of[int(r)] for r in np.unique(c) if r in family_of} for c in listed]
        for i, ours in enumerate(present):
            others = set().union(*present[:i], *present[i + 1 :])
            for family in ours:
                rivals.setdefault(family, set()).update(others - {family})
    features, copies = (
        {
            int(r)
            for labels in found
            for r in walk.labels.find(np.concatenate(walk.labels.expand(labels)))
        }
        for found in (walk.features, walk.copies)
    )
    first = [int(roots[0]) for roots in families]

    def preference(i: int) -> tuple[bool, bool, int, int]:
        return first[i] in features, first[i] in copies, -len(families[i]), i

    chosen: set[int] = set()
    for i in sorted(range(len(families)), key=preference):
        rival = rivals.get(i, set()) & chosen
        if rival:
            what = "they are inside heads" if first[i] in features else "they are split across"
            walk.labels.pin(
                families[i], f"{what}, and whole units of the other factor are removed instead"
            )
        else:
            chosen.add(i)
    return [families[i] for i in sorted(chosen) if len(families[i]) > 1]


def _group(
    analysis: Any,
    columns: list[tuple[Dimension, Indices]],
    roots: Indices,
    stage: Stage | None,
    named: set[str],
) -> Group:
    outputs, ragged = analysis.walk.outputs, analysis.walk.ragged
    slices = []
    for place, labels in columns:
        filters = ragged[place[0]].filters if labels.ndim == 2 else 0
        slices.append(Slice(*place, unit_of(roots, labels), place in outputs, filters))
    slices.sort(key=lambda s: not s.is_output)
    name = base = slices[0].tensor if slices else ""
    number = 2
    while name in named:
        name, number = f"{base} #{number}", number + 1
    named.add(name)
    rows = _rows(analysis, roots) if stage is None else stage.rows
    return Group(name, len(roots), tuple(slices), rows, roots, stage)


def _rows(analysis: Any, roots: Indices) -> Indices | None:
    """Return the row of each unit such that equal counts in rows satisfy every balance."""
    cells = np.zeros(len(roots), np.int64)
    for balance in analysis.walk.balances:
        counts = np.zeros((len(balance.rows), len(roots)), np.int64)
        for row, labels in enumerate(balance.rows):
            units = unit_of(roots, analysis.walk.labels.find(labels))
            np.add.at(counts[row], units[units >= 0], 1)
        is_partition = ((counts > 0).sum(axis=0) == 1).all()
        if is_partition and (counts > 0).any(axis=1).all():
            joint = cells * len(counts) + counts.argmax(axis=0)
            numbers = np.unique(joint, return_inverse=True)[1]
            if len(set(np.bincount(numbers).tolist())) == 1:
                cells = numbers
    return cells if cells.any() and np.bincount(cells)[0] > 1 else None


def find_pinned(analysis: Any, groups: Sequence[Group]) -> tuple[Pinned, ...]:
    """Return every dimension that produces channels of which none can be removed, with the reason."""
    free = {(s.tensor, s.dim) for group in groups for s in group.slices}
    found = []
    for name, dim in sorted(analysis.walk.outputs):
        value = analysis.axes.get(name)
        if value is None or (name, dim) in free or value.shape[dim] < 2:
            continue
        walk = analysis.walk
        labels = [x for c in value.axes[dim] for x in walk.labels.expand(c.labels)]
        # Of gates times units, units are what users want to remove.
        labels.sort(key=lambda x: -len(np.unique(x)))
        reasons = [walk.labels.reason(int(x[0])) for x in labels]
        reason = next((r for r in reasons if r), "nothing else is removed with it")
        found.append(Pinned(name, dim, value.shape[dim], reason))
    return tuple(found)
