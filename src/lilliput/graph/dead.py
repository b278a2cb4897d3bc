"""Find the units of a masked model that have no effect, because all their slices are zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lilliput.graph.groups import ChannelGroups, Group, Slice
from lilliput.graph.labels import Flags

# Returns which indices of a slice are zero, in the shape of its units; None to ignore the slice.
Zeros = Callable[[Slice], Flags | None]


def find_dead(groups: ChannelGroups, zeros: Zeros, only_outputs: bool = False) -> dict[str, Flags]:
    """Return, per group, the units whose slices (or, with ``only_outputs``, output slices) are all zero."""
    return {group.name: _dead_units(group, zeros, only_outputs) for group in groups.groups}


def _dead_units(group: Group, zeros: Zeros, only_outputs: bool) -> Flags:
    dead: Flags = np.ones(group.size, bool)
    seen: Flags = np.zeros(group.size, bool)
    for piece in group.slices:
        gone = None if only_outputs and not piece.is_output else zeros(piece)
        if gone is None:
            continue
        inside = piece.units >= 0
        np.logical_and.at(dead, piece.units[inside], gone[inside])
        seen[piece.units[inside]] = True
    return dead & seen


def one_left(dead: dict[str, Flags]) -> dict[str, Flags]:
    """Return the same with one unit alive in each group that would be removed entirely."""
    for units in dead.values():
        units[0] &= not units.all()
    return dead
