"""Draw channel groups as one self-contained SVG, like a map of metro lines.

Layers stand in a column, each group is a line past the layers that make, pass on and read its channels.

>>> import torch
>>> from lilliput.torch import channel_groups
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> picture = draw(channel_groups(model, torch.zeros(2, 4)))
>>> "0.weight · 8 units" in picture
True
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lilliput.graph.groups import ChannelGroups, Group


_LINE, _CHARACTER, _MARGIN = 18, 7.25, 16  # heights and widths in pixels, of 12 px monospace
_LONGEST_NAME, _LONGEST_TEXT = 52, 88
_LIGHT = ("#0072b2", "#c8500a", "#00805a", "#a8417c", "#8a6a00", "#b0263c", "#6a45a8", "#6d5330")
_DARK = ("#4db1ec", "#f58b4c", "#35c795", "#e48dbf", "#d9b13b", "#f47c8a", "#b79bf0", "#c9a878")
_STYLE = """
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328}
.title{font-weight:600}.small,.stays{font-size:11px}.small{fill:#6a737d}.end{text-anchor:end}
.again,.stays{fill:#8c959f}.label{fill:currentColor}.back{fill:#fff}.rule{stroke:#eaeef2;fill:none}
.line,.makes,.reads,.passes{fill:none;stroke:currentColor;stroke-linecap:round;stroke-width:2.5}
.makes,.reads{stroke-width:11}.passes{stroke-width:6}
.hole,.pip{fill:none;stroke:#fff;stroke-linecap:round;stroke-width:6.5}.pip{stroke-width:3.5}
"""
_DARK_STYLE = """
text{fill:#e6edf3}.small{fill:#9198a1}.again,.stays{fill:#6e7681}.label{fill:currentColor}
.back{fill:#0d1117}.hole,.pip{stroke:#0d1117}.rule{stroke:#21262d}
"""


@dataclass(eq=False)
class _Row:
    """A module: its tensors with their shapes, and what is written to its right."""

    name: str
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    texts: list[tuple[str, str]] = field(default_factory=list)  # class, text
    is_in_a_group: bool = False
    stays: bool = False
    y: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first tensor with the most dimensions."""
        return max(self.tensors.values(), key=len, default=())


@dataclass(frozen=True, eq=False)
class _Track:
    """A group as a line: the rows where it stops, and what happens there."""

    group: Group
    makes: list[int]
    reads: list[int]
    passes: list[int]
    lane: int
    color: int

    @property
    def stops(self) -> list[int]:
        return sorted({*self.makes, *self.reads, *self.passes})


def draw(groups: ChannelGroups) -> str:
    """Return the picture of all channel groups of a model.

    A filled dot: the layer makes the channels. A ring: it reads them. Both: a filled ring. A small dot:
    it scales or shifts them, as norms do. Grey layers keep all their channels, for the reason written
    next to them. A pointer over a name or a line shows the rest.
    """
    rows = _find_rows(groups)
    place = {tensor: i for i, row in enumerate(rows) for tensor in row.tensors}
    tracks = _find_tracks(groups, place)
    _write_texts(groups, rows, place, tracks)
    notes = [f"op without a rule: {name}, at {where}" for name, where in groups.unknown.items()]
    return _Canvas(rows, tracks, notes).render(groups)


# -- what is drawn ---------------------------------------------------------------------------------


def _find_rows(groups: ChannelGroups) -> list[_Row]:
    """Return the modules with parameters in model order, and those that are never reached."""
    shapes = {name: value.shape for name, value in groups.analysis.axes.items()}
    used = {s.tensor for group in groups for s in group.slices}
    shown = {
        *groups.analysis.graph.trained,
        *used,
        *groups.unreached,
        *(pinned.tensor for pinned in groups.pinned),
    }
    rows: dict[str, _Row] = {}
    for name in (*shapes, *groups.unreached):
        path = name.rpartition(".")[0] or name
        if path in rows or name in shown:  # of other buffers there is nothing to tell
            row = rows.setdefault(path, _Row(path))
            row.tensors[name] = shapes.get(name, ())
            row.is_in_a_group |= name in used
    return list(rows.values())


def _find_tracks(groups: ChannelGroups, place: dict[str, int]) -> list[_Track]:
    """Give each group the leftmost free lane, and a colour that no neighbour has."""
    ends: list[int] = []  # of the last group in each lane
    tracks: list[_Track] = []
    stops = {g.name: [place[s.tensor] for s in g.slices] for g in groups}
    for group in sorted(groups, key=lambda g: (min(stops[g.name]), -max(stops[g.name]))):
        first, last = min(stops[group.name]), max(stops[group.name])
        lane = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        near = {t.color for t in tracks if t.stops[-1] >= first - 1}
        turn = [(len(tracks) + i) % len(_LIGHT) for i in range(len(_LIGHT))]
        color = next((c for c in turn if c not in near), turn[0])
        makes, reads, passes = _stops(group, place, groups.analysis.walk.outputs)
        tracks.append(_Track(group, makes, reads, passes, lane, color))
    return tracks


def _stops(
    group: Group, place: dict[str, int], outputs: Collection[tuple[str, int]]
) -> tuple[list[int], list[int], list[int]]:
    """Return where channels are made, where they are read, and where they only pass."""
    makes = {place[s.tensor] for s in group.slices if s.is_output}
    makers = {
        tensor for tensor, _ in outputs
    }  # of these channels or of others, which they read for
    reads = {place[s.tensor] for s in group.slices if not s.is_output and s.tensor in makers}
    others = {place[s.tensor] for s in group.slices} - makes - reads
    return sorted(makes), sorted(reads), sorted(others)


def _write_texts(
    groups: ChannelGroups, rows: list[_Row], place: dict[str, int], tracks: Iterable[_Track]
) -> None:
    for track in tracks:
        group = track.group
        parts = f"{group.size} units"
        parts += "" if group.rows is None else f" in {group.rows.max() + 1} rows"
        row = rows[place[group.slices[0].tensor]]
        row.texts.append((f"k{track.color} label", f"{group.name} · {parts}"))
    for pinned in groups.pinned:
        row = rows[place[pinned.tensor]]
        row.texts.append(("stays", f"{pinned.size} stay: {pinned.reason}"))
        row.stays |= not any(kind.endswith("label") for kind, _ in row.texts)
    for name in groups.unreached:
        row = rows[place[name]]
        text = ("stays", "the example inputs never reach it")
        row.texts += [] if text in row.texts else [text]
    for row in rows:
        row.stays |= not row.is_in_a_group


# -- how it is drawn -------------------------------------------------------------------------------


class _Canvas:
    """Places for rows and lanes, and the parts of the SVG."""

    def __init__(self, rows: list[_Row], tracks: list[_Track], notes: list[str]) -> None:
        self.rows, self.tracks, self.notes = rows, tracks, notes
        y = 76
        for row in rows:
            row.y = y
            y += _LINE * max(1, len(row.texts))
        self.height = y + _LINE * len(notes) + 2
        lanes = 1 + max((t.lane for t in tracks), default=0)
        self.gap = 18 if lanes <= 24 else 12
        self.shapes_at = _MARGIN + self._width([_tail(r.name) for r in rows]) + 14
        self.shapes_at += self._width([_shape(r.shape) for r in rows]) * 11 / 12
        self.first_lane = round(self.shapes_at + 22)
        self.texts_at = self.first_lane + lanes * self.gap + 6
        texts = [_short(text) for r in rows for _, text in r.texts]
        self.width = round(max(self.texts_at + self._width(texts) + _MARGIN, 620))

    @staticmethod
    def _width(texts: Iterable[str]) -> float:
        return max((len(text) for text in texts), default=0) * _CHARACTER

    def x(self, lane: int) -> int:
        return self.first_lane + lane * self.gap

    def render(self, groups: ChannelGroups) -> str:
        units, many = sum(group.size for group in groups), "" if len(groups) == 1 else "s"
        title = f"{len(groups)} channel group{many}, {units} units can be removed"
        size = f"{self.width} {self.height}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="Channel groups">',
            f"<style>{_style()}</style>",
            f'<rect class="back" width="{self.width}" height="{self.height}"/>',
            _text((_MARGIN, 26), title, "title"),
            self._legend(),
            self._rules(),
            *(self._track(track) for track in self.tracks),
            *self._names(),
            *(
                _text((_MARGIN, self._note_y(i)), note, "small")
                for i, note in enumerate(self.notes)
            ),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _note_y(self, number: int) -> int:
        return self.height - 6 - _LINE * (len(self.notes) - 1 - number)

    def _legend(self) -> str:
        x, y, parts = _MARGIN + 6, 46, []
        for name, *kinds in (
            ("makes the channels", "makes"),
            ("reads them", "reads", "hole"),
            ("both", "reads", "pip"),
            ("scales or shifts them", "passes"),
        ):
            parts += [_dots([(x, y)], kind) for kind in kinds]
            parts.append(_text((x + 11, y + 4), name, "small"))
            x += round(34 + len(name) * _CHARACTER * 11 / 12)
        return f'<g class="k0">{"".join(parts)}</g>'

    def _rules(self) -> str:
        """Hairlines from the names to the text on the right."""
        far = [0] * len(self.rows)
        for track in self.tracks:
            for i in track.stops:
                far[i] = max(far[i], self.x(track.lane))
        d = ""
        for i, row in enumerate(self.rows):
            end = self.texts_at - 6 if row.texts else far[i]
            d += f"M{round(self.shapes_at) + 6} {row.y}H{end}" if end else ""
        return f'<path class="rule" d="{d}"/>'

    def _track(self, track: _Track) -> str:
        x = self.x(track.lane)
        stops = track.stops
        longest = max(120, 16_000 // len(self.tracks))  # of many groups, less is told of each
        both = [i for i in track.makes if i in track.reads]
        marks = [
            ([i for i in track.makes if i not in both], "makes"),
            ([*track.reads], "reads"),
            ([i for i in track.reads if i not in both], "hole"),
            (both, "pip"),
            (track.passes, "passes"),
        ]
        line = f'<path class="line" d="M{x} {self.rows[stops[0]].y}V{self.rows[stops[-1]].y}"/>'
        dots = (_dots([(x, self.rows[i].y) for i in at], kind) for at, kind in marks if at)
        return f'<g class="k{track.color}">{_title(_summary(track.group, longest))}{line}{"".join(dots)}</g>'

    def _names(self) -> list[str]:
        parts, before = [], ""
        for row in self.rows:
            parts.append(self._name(row, before))
            parts.append(_text((round(self.shapes_at), row.y + 4), _shape(row.shape), "small end"))
            for i, (kind, text) in enumerate(row.texts):
                place = (self.texts_at, row.y + 4 + i * _LINE)
                hover = text if kind == "stays" or _short(text) != text else ""
                parts.append(_text(place, _short(text), kind, hover))
            before = row.name
        return parts

    def _name(self, row: _Row, before: str) -> str:
        """Write a name, what it shares with the one above in grey."""
        shown = _tail(row.name)
        shared = max(0, _shared(before, row.name) - len(row.name) + len(shown))
        tail = f"<tspan>{escape(shown[shared:])}</tspan>"
        head = f'<tspan class="again">{escape(shown[:shared])}</tspan>' if shared else ""
        kind = ' class="stays"' if row.stays else ""
        body = escape(shown) if row.stays else head + tail
        listed = "\n".join(f"{name} {_shape(shape)}" for name, shape in row.tensors.items())
        return f'<text x="{_MARGIN}" y="{row.y + 4}"{kind}>{_title(listed)}{body}</text>'


def _style() -> str:
    light = "".join(f".k{i}{{color:{color}}}" for i, color in enumerate(_LIGHT))
    dark = "".join(f".k{i}{{color:{color}}}" for i, color in enumerate(_DARK))
    return f"{_STYLE}{light}\n@media(prefers-color-scheme:dark){{{_DARK_STYLE}{dark}}}"


def _summary(group: Group, longest: int) -> str:
    """Return what a group's line says under a pointer."""
    lines = str(group).splitlines()
    return "\n".join(x if len(x) <= longest else f"{x[:longest]} …" for x in lines)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _tail(name: str) -> str:
    """Return the end of a long name."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"


def _short(text: str) -> str:
    """Shorten a long text in its middle."""
    half = (_LONGEST_TEXT - 1) // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}…{text[-half:]}"


def _shared(before: str, name: str) -> int:
    """Return how long the path is that two names have in common.

    >>> _shared("layer1.0.conv1", "layer1.0.conv2")
    9
    """
    parts = name.split(".")
    same = 0
    for a, b in zip(before.split("."), parts[:-1], strict=False):
        if a != b:
            break
        same += len(b) + 1
    return same


def _dots(places: Iterable[tuple[int, int]], kind: str) -> str:
    """Draw dots below each other as the round ends of strokes without length: a few bytes each."""
    (x, y), *others = places
    d = f"M{x} {y}h0"
    for _, below in others:
        d += f"m0 {below - y}h0"
        y = below
    return f'<path class="{kind}" d="{d}"/>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _text(place: tuple[int, int], text: str, kind: str, title: str = "") -> str:
    hover = _title(title) if title else ""
    return f'<text x="{place[0]}" y="{place[1]}" class="{kind}">{hover}{escape(text)}</text>'
