"""The channel groups of a report as a metro map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lilliput.charts.metro import Row, Track, draw_map, units_of

if TYPE_CHECKING:
    from lilliput.report.document import ChannelGroup


def draw_groups(groups: Sequence[ChannelGroup], order: Sequence[str] = ()) -> str:
    """Return the map; ``order`` names the layers in the order of the model.

    Examples
    --------
    >>> from lilliput.report.document import ChannelGroup
    >>> group = ChannelGroup(name="0.weight", size=8, makes=["0"], reads=["2"])
    >>> draw_groups([group])[:10]
    '<svg class'
    """
    rows = {name: Row(name) for name in layers_in(groups, order)}
    place = {name: i for i, name in enumerate(rows)}
    tracks = []
    for group in groups:
        if not group.reason:
            label = units_of(group.size, group.rows)
            roles = (group.makes, group.reads, group.passes)
            makes, reads, passes = ([place[x] for x in layers] for layers in roles)
            hover = f"{group.name}: {label}"
            tracks.append(Track(group.size, label, hover, makes, reads, passes))
        elif group.makes:
            rows[group.makes[0]].write(f"{group.size} stay: {group.reason}")
    return draw_map(list(rows.values()), tracks)


def layers_in(groups: Sequence[ChannelGroup], order: Sequence[str] = ()) -> list[str]:
    """Return the layers that a map has, those of ``order`` first."""
    named = dict.fromkeys(x for g in groups for x in (*g.makes, *g.passes, *g.reads))
    return list(dict.fromkeys([*(x for x in order if x in named), *named]))
