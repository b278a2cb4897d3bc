"""Channel groups like a map of metro lines: layers in a column, a line past all that belongs together.

The picture of :mod:`lilliput.charts.metro` for the report's page: from the data of a report,
which has no shapes, and in the page's colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lilliput.charts.colors import SERIES_LIGHT
from lilliput.charts.svg import drawing, hovering, path, shortened, text

if TYPE_CHECKING:
    from lilliput.report.document import ChannelGroup

_ROW, _CHARACTER, _GAP, _MARGIN = 22, 7.0, 18, 8
_LONGEST_NAME, _LONGEST_TEXT = 40, 64


@dataclass(frozen=True)
class _Track:
    """A group as a line: its lane from the left, its colour, and the rows of its ends."""

    group: ChannelGroup
    lane: int
    color: int
    first: int
    last: int


def draw_groups(groups: Sequence[ChannelGroup], order: Sequence[str] = ()) -> str:
    """Return the map; ``order`` names the layers as the model has them.

    Examples
    --------
    >>> from lilliput.report.document import ChannelGroup
    >>> group = ChannelGroup(name="0.weight", size=8, makes=["0"], reads=["2"])
    >>> draw_groups([group])[:10]
    '<svg class'
    """
    rows = _rows(groups, order)
    place = {name: i for i, name in enumerate(rows)}
    tracks = _tracks([g for g in groups if not g.reason], place)
    lanes = 1 + max((t.lane for t in tracks), default=0)
    left = _MARGIN + max(len(shortened(x, _LONGEST_NAME)) for x in rows) * _CHARACTER + 22
    labels = _labels(groups, tracks, place)
    longest = max((len(label) for texts in labels.values() for _, label in texts), default=0)
    right = left + lanes * _GAP + 4
    parts = [_rules(rows, tracks, place, left, right, labels)]
    parts += [_line(track, place, left) for track in tracks]
    for name, i in place.items():
        kind = "" if any(i in _stops(t.group, place) for t in tracks) else "stays"
        parts.append(text((_MARGIN, _y(i) + 4), shortened(name, _LONGEST_NAME), kind))
        for shown, label in labels.get(i, [])[:1]:
            more = len(labels[i]) - 1
            parts.append(text((right, _y(i) + 4), label + (f" (+{more})" if more else ""), shown))
    size = (right + (longest + 5) * _CHARACTER + _MARGIN, len(rows) * _ROW + 8)
    units = sum(t.group.size for t in tracks)
    words = f"{len(tracks)} groups with {units} units that can be removed, in {len(rows)} layers."
    fixed = f'width="{size[0]:.0f}" height="{size[1]}" '
    return drawing("metro-1", size, "Channel groups", words, parts, fixed)


def count_rows(groups: Sequence[ChannelGroup]) -> int:
    """Return how many layers a map would have."""
    return len(_rows(groups, ()))


def _rows(groups: Sequence[ChannelGroup], order: Sequence[str]) -> list[str]:
    named = {x for g in groups for x in (*g.makes, *g.reads, *g.passes)}
    return list(dict.fromkeys([*(x for x in order if x in named), *_in_order(groups)]))


def _in_order(groups: Sequence[ChannelGroup]) -> list[str]:
    return [x for g in groups for x in (*g.makes, *g.passes, *g.reads)]


def _stops(group: ChannelGroup, place: dict[str, int]) -> set[int]:
    return {place[x] for x in (*group.makes, *group.reads, *group.passes)}


def _tracks(groups: Sequence[ChannelGroup], place: dict[str, int]) -> list[_Track]:
    """Give each group the leftmost free lane, and the next colour."""
    ends: list[int] = []
    tracks: list[_Track] = []
    for group in sorted(groups, key=lambda g: sorted(_stops(g, place))):
        stops = _stops(group, place)
        if not stops:
            continue
        first, last = min(stops), max(stops)
        lane = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        tracks.append(_Track(group, lane, len(tracks) % len(SERIES_LIGHT), first, last))
    return tracks


def _labels(
    groups: Sequence[ChannelGroup], tracks: Sequence[_Track], place: dict[str, int]
) -> dict[int, list[tuple[str, str]]]:
    """Return what is written to the right of each row: groups that begin there, and what stays."""
    labels: dict[int, list[tuple[str, str]]] = {}
    for track in tracks:
        rows = f" in {track.group.rows} rows" if track.group.rows else ""
        label = f"{track.group.size} units{rows}"
        labels.setdefault(track.first, []).append((f"s{track.color} units", label))
    for group in groups:
        if group.reason and group.makes:
            reason = f"{group.size} stay: {group.reason}"
            label = reason if len(reason) <= _LONGEST_TEXT else f"{reason[: _LONGEST_TEXT - 1]}…"
            labels.setdefault(place[group.makes[0]], []).append(("stays", label))
    return labels


def _rules(
    rows: Sequence[str],
    tracks: Sequence[_Track],
    place: dict[str, int],
    left: float,
    right: float,
    labels: dict[int, list[tuple[str, str]]],
) -> str:
    """Draw hairlines from the names to the stops and to the text."""
    far = dict.fromkeys(labels, right - 6)
    for track in tracks:
        for i in _stops(track.group, place):
            far[i] = max(far.get(i, 0), left + track.lane * _GAP)
    return path("".join(f"M{left - 14:.0f} {_y(i)}H{x:.0f}" for i, x in far.items()), "grid")


def _line(track: _Track, place: dict[str, int], left: float) -> str:
    """Draw a group: filled dots make its channels, rings read them, small dots pass them on."""
    x, group = round(left + track.lane * _GAP), track.group
    dots = ""
    for kind, layers in (("passes", group.passes), ("reads", group.reads), ("makes", group.makes)):
        at = sorted({place[name] for name in layers})
        dots += path("".join(f"M{x} {_y(i)}h0" for i in at), kind) if at else ""
        if kind == "reads" and at:
            dots += path("".join(f"M{x} {_y(i)}h0" for i in at), "hole")
    line = path(f"M{x} {_y(track.first)}V{_y(track.last)}", "line")
    name = hovering(f"{group.name}: {group.size} units")
    return f'<g class="s{track.color}">{name}{line}{dots}</g>'


def _y(row: int) -> int:
    return row * _ROW + 14
