"""A metro map: layers in a column, and a line past all layers that belong together.

A filled dot: the layer produces the channels of a group. A ring: it reads them. Both: a filled ring. A small
dot: it scales or shifts them, as norms do. Grey layers keep all their channels, for the reason written
next to them. Hovering over a name or a line shows the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from lilliput.charts.colors import SERIES_LIGHT
from lilliput.charts.svg import as_file, drawing, hovering, path, shortened, text

_COLORS = len(SERIES_LIGHT)
_LINE, _CHARACTER, _MARGIN = 18, 7.25, 16  # heights and widths in pixels, of 12 px monospace
_SMALL = 11 / 12  # of the other texts
_LONGEST_NAME, _LONGEST_TEXT = 52, 88

STYLE = """
.metro text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink)}
.metro .title{font-weight:600}.metro .small,.metro .stays{font-size:11px}
.metro .small,.metro .stays,.metro .again{fill:var(--soft)}.metro .units{fill:currentColor}
.metro .end{text-anchor:end}.metro .rule{stroke:var(--line);fill:none}
.metro .line,.metro .makes,.metro .reads,.metro .passes,.metro .hole,.metro .pip{
fill:none;stroke:currentColor;stroke-linecap:round;stroke-width:2.5}
.metro .makes,.metro .reads{stroke-width:11}.metro .passes{stroke-width:6}
.metro .hole,.metro .pip{stroke:var(--card);stroke-width:6.5}.metro .pip{stroke-width:3.5}
""" + "".join(f".s{i}{{color:var(--s{i})}}" for i in range(_COLORS))


@dataclass(eq=False)
class Row:
    """A layer, and the texts to its right, each with its CSS class."""

    name: str
    shape: str = ""
    hover: str = ""
    texts: list[tuple[str, str]] = field(default_factory=list)
    stays: bool = False  # written in grey
    y: int = 0

    def write(self, content: str, kind: str = "stays") -> None:
        """Add a text, once."""
        self.texts += [] if (kind, content) in self.texts else [(kind, content)]


@dataclass(eq=False)
class Track:
    """A group as a line: the numbers of the rows that produce, read and pass on its channels."""

    size: int  # units
    label: str  # written next to its first row
    hover: str
    makes: Sequence[int]
    reads: Sequence[int]
    passes: Sequence[int]
    lane: int = 0
    color: int = 0

    @property
    def stops(self) -> list[int]:
        """The rows where it stops, from the top."""
        return sorted({*self.makes, *self.reads, *self.passes})

    @property
    def start(self) -> int:
        """The row of its label."""
        return (self.makes or self.stops)[0]


def units_of(size: int, rows: int | None) -> str:
    """Return the size of a group as text."""
    return f"{size} units" + (f" in {rows} rows" if rows else "")


def draw_map(rows: Sequence[Row], tracks: Iterable[Track]) -> str:
    """Return the map as a part of a page, which has :data:`STYLE`.

    Examples
    --------
    >>> track = Track(8, "8 units", "0.weight", makes=[0], reads=[1], passes=[])
    >>> draw_map([Row("0"), Row("2")], [track])[:24]
    '<svg class="chart metro"'
    """
    return _Canvas(rows, tracks, top=14).inline()


def draw_map_file(rows: Sequence[Row], tracks: Iterable[Track], notes: Sequence[str]) -> str:
    """Return the map as a separate file, with a title, a legend and notes below."""
    return _Canvas(rows, tracks, top=76).as_file(notes)


def _lay_out(tracks: Iterable[Track]) -> list[Track]:
    """Give each line the leftmost free lane, and a colour that no neighbour has."""
    ends: list[int] = []  # of the last line in each lane
    placed: list[Track] = []
    for track in sorted((t for t in tracks if t.stops), key=lambda t: (t.stops[0], -t.stops[-1])):
        first, last = track.stops[0], track.stops[-1]
        track.lane = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[track.lane : track.lane + 1] = [last]
        near = {t.color for t in placed if t.stops[-1] >= first - 1}
        turn = [(len(placed) + i) % _COLORS for i in range(_COLORS)]
        track.color = next((c for c in turn if c not in near), turn[0])
        placed.append(track)
    return placed


class _Canvas:
    """The positions of rows and lanes, and the parts of the SVG."""

    def __init__(self, rows: Sequence[Row], tracks: Iterable[Track], top: int) -> None:
        self.rows, self.tracks = rows, _lay_out(tracks)
        stops = {i for track in self.tracks for i in track.stops}
        for i, row in enumerate(rows):
            labels = [(f"s{t.color} units", t.label) for t in self.tracks if t.start == i]
            row.stays = i not in stops or (bool(row.texts) and not labels)
            row.texts = [*labels, *row.texts]
        self.end = top
        for row in rows:
            row.y = self.end
            self.end += _LINE * max(1, len(row.texts))
        lanes = 1 + max((t.lane for t in self.tracks), default=0)
        self.gap = 18 if lanes <= 24 else 12
        self.shapes_at = _MARGIN + _width(shortened(r.name, _LONGEST_NAME) for r in rows) + 14
        self.shapes_at += _width(r.shape for r in rows) * _SMALL
        self.first_lane = round(self.shapes_at + 22)
        self.texts_at = self.first_lane + lanes * self.gap + 6
        texts = _width(_in_short(content) for row in rows for _, content in row.texts)
        self.width = round(self.texts_at + texts + _MARGIN)

    def inline(self) -> str:
        size = (self.width, self.end)
        return self._drawing(size, f'width="{size[0]}" height="{size[1]}" ', self._map())

    def as_file(self, notes: Sequence[str]) -> str:
        size = (max(self.width, 620), self.end + _LINE * len(notes) + 2)
        parts = [text((_MARGIN, 26), self._title(), "title"), self._legend(), *self._map()]
        for i, note in enumerate(notes):
            parts.append(text((_MARGIN, self.end + _LINE * (i + 1) - 4), note, "small"))
        return as_file(self._drawing(size, "", parts), size, STYLE) + "\n"

    def _drawing(self, size: tuple[int, int], attributes: str, parts: list[str]) -> str:
        words = f"{self._title()}, in {len(self.rows)} layers."
        return drawing("metro-1", size, "Channel groups", words, parts, attributes)

    def _title(self) -> str:
        units, many = sum(t.size for t in self.tracks), "" if len(self.tracks) == 1 else "s"
        return f"{len(self.tracks)} channel group{many}, {units} units can be removed"

    def _map(self) -> list[str]:
        return [self._rules(), *map(self._track, self.tracks), *self._names()]

    def _legend(self) -> str:
        x, y, parts = _MARGIN + 6, 46, []
        for name, *kinds in (
            ("makes the channels", "makes"),
            ("reads them", "reads", "hole"),
            ("both", "reads", "pip"),
            ("scales or shifts them", "passes"),
        ):
            parts += [_dots([(x, y)], kind) for kind in kinds]
            parts.append(text((x + 11, y + 4), name, "small"))
            x += round(34 + len(name) * _CHARACTER * _SMALL)
        return f'<g class="s0">{"".join(parts)}</g>'

    def _x(self, lane: int) -> int:
        return self.first_lane + lane * self.gap

    def _rules(self) -> str:
        """Hairlines from the names to the text on the right, or to the last stop."""
        far = [self.texts_at - 6 if row.texts else 0 for row in self.rows]
        for track in self.tracks:
            for i in track.stops:
                far[i] = max(far[i], self._x(track.lane))
        start = round(self.shapes_at) + 6
        drawn = (f"M{start} {r.y}H{x}" for r, x in zip(self.rows, far, strict=True) if x)
        return path("".join(drawn), "rule")

    def _track(self, track: Track) -> str:
        x, stops = self._x(track.lane), track.stops
        longest = max(120, 16_000 // len(self.tracks))  # with many groups, each gets less text
        lines = track.hover.splitlines()
        told = "\n".join(y if len(y) <= longest else f"{y[:longest]} …" for y in lines)
        both = [i for i in track.makes if i in track.reads]
        marks = [
            ([i for i in track.makes if i not in both], "makes"),
            (track.reads, "reads"),
            ([i for i in track.reads if i not in both], "hole"),
            (both, "pip"),
            (track.passes, "passes"),
        ]
        line = path(f"M{x} {self.rows[stops[0]].y}V{self.rows[stops[-1]].y}", "line")
        dots = (_dots([(x, self.rows[i].y) for i in sorted(at)], kind) for at, kind in marks if at)
        return f'<g class="s{track.color}">{hovering(told)}{line}{"".join(dots)}</g>'

    def _names(self) -> list[str]:
        parts, before = [], ""
        for row in self.rows:
            parts.append(_name(row, before))
            if row.shape:
                at = (round(self.shapes_at), row.y + 4)
                parts.append(text(at, row.shape, "small end"))
            for i, (kind, content) in enumerate(row.texts):
                shown = _in_short(content)
                hover = content if kind == "stays" or shown != content else ""
                parts.append(text((self.texts_at, row.y + 4 + i * _LINE), shown, kind, "", hover))
            before = row.name
        return parts


def _name(row: Row, before: str) -> str:
    """Write a name, with the part that it shares with the one above in grey."""
    shown = shortened(row.name, _LONGEST_NAME)
    shared = 0 if row.stays else max(0, _shared(before, row.name) - len(row.name) + len(shown))
    head = f'<tspan class="again">{escape(shown[:shared])}</tspan>' if shared else ""
    tail = f"<tspan>{escape(shown[shared:])}</tspan>" if shared else escape(shown)
    kind = ' class="stays"' if row.stays else ""
    hover = hovering(row.hover) if row.hover else ""
    return f'<text x="{_MARGIN}" y="{row.y + 4}"{kind}>{hover}{head}{tail}</text>'


def _width(texts: Iterable[str]) -> float:
    return max((len(content) for content in texts), default=0) * _CHARACTER


def _in_short(content: str) -> str:
    """Shorten a long text in the middle."""
    half = (_LONGEST_TEXT - 1) // 2
    return content if len(content) <= _LONGEST_TEXT else f"{content[:half]}…{content[-half:]}"


def _shared(before: str, name: str) -> int:
    """Return the length of the path that two names have in common.

    >>> _shared("layer1.0.conv1", "layer1.0.conv2")
    9
    """
    same = 0
    for a, b in zip(before.split("."), name.split(".")[:-1], strict=False):
        if a != b:
            break
        same += len(b) + 1
    return same


def _dots(places: Sequence[tuple[int, int]], kind: str) -> str:
    """Draw dots below each other as the round ends of strokes without length: a few bytes each."""
    (x, y), *others = places
    d = f"M{x} {y}h0"
    for _, below in others:
        d += f"m0 {below - y}h0"
        y = below
    return path(d, kind)
