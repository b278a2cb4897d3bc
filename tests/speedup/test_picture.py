"""The picture of channel groups: complete, well-formed, small, and always the same."""

from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.graph.groups import ChannelGroups, Group, Slice
from lilliput.graph.picture import draw
from lilliput.speedup.channels import channel_groups

SVG = "{http://www.w3.org/2000/svg}"


def lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 4 * 4, 10)),
    )


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width // 2, 1)
        self.norm = nn.BatchNorm2d(width // 2)
        self.last = nn.Conv2d(width // 2, width, 1)

    def forward(self, x):
        return x + self.last(self.norm(self.first(x)).relu())


@pytest.fixture(scope="module")
def groups():
    return channel_groups(lenet(), torch.zeros(2, 1, 8, 8))


def texts(picture):
    """Return what is written, and separately what a pointer would show."""
    root = ElementTree.fromstring(picture)
    hovers = [t.text for t in root.iter(f"{SVG}title")]
    written = []
    for element in root.iter(f"{SVG}text"):
        for title in element.findall(f"{SVG}title"):
            title.text = ""
        written.append("".join(element.itertext()))
    return written, hovers


def test_every_layer_group_and_reason_is_written(groups):
    written, hovers = texts(draw(groups))
    assert {"0", "1", "3", "6"} <= set(written)
    assert {"6×1×3×3", "8×6×3×3", "10×128"} <= set(written)
    assert {"0.weight · 6 units", "3.weight · 8 units"} <= set(written)
    assert "10 stay: they are the model's output" in written
    assert "10 stay: they are the model's output" in hovers
    for group in groups:
        assert str(group) in hovers


def test_dots_say_who_makes_passes_and_reads(groups):
    lines = [
        {path.get("class"): path.get("d").lower().count("m") for path in line.findall(f"{SVG}path")}
        for line in ElementTree.fromstring(draw(groups)).findall(f"{SVG}g")[1:]
    ]
    assert lines == [
        {"line": 1, "makes": 1, "reads": 1, "hole": 1, "passes": 1},
        {"line": 1, "makes": 1, "reads": 1, "hole": 1},
    ]


def test_a_layer_that_makes_and_reads_the_same_channels_has_a_mark_of_its_own():
    model = nn.LSTM(4, 6)
    picture = draw(channel_groups(nn.Sequential(model, Last(6)), torch.zeros(2, 3, 4)))
    line = ElementTree.fromstring(picture).findall(f"{SVG}g")[1]
    assert {path.get("class") for path in line.findall(f"{SVG}path")} >= {"reads", "pip"}


class Last(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(width, 2)

    def forward(self, pair):
        return self.head(pair[0])


def test_groups_that_overlap_have_lanes_and_colours_of_their_own():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *(Block(8) for _ in range(12)), nn.Conv2d(8, 2, 1))
    root = ElementTree.fromstring(draw(channel_groups(model, torch.zeros(2, 3, 4, 4))))
    lines = []
    for line in root.findall(f"{SVG}g")[1:]:
        x, rest = line.find(f"{SVG}path[@class='line']").get("d")[1:].split(" ")
        first, last = map(int, rest.split("V"))
        lines.append((x, line.get("class"), first, last))
    assert len(lines) == 13
    for i, (x, color, first, last) in enumerate(lines):
        for other_x, other_color, other_first, other_last in lines[:i]:
            if other_last >= first and last >= other_first:
                assert x != other_x
                assert color != other_color
    assert len({x for x, *_ in lines}) == 2


def test_names_and_reasons_are_escaped(groups):
    pinned = replace(groups.pinned[0], reason='a < b & "c" > d')
    group = replace(groups.groups[0], name="<odd> & name")
    picture = draw(replace(groups, groups=(group, *groups.groups[1:]), pinned=(pinned,)))
    written, hovers = texts(picture)
    assert "<odd> & name · 6 units" in written
    assert '10 stay: a < b & "c" > d' in written
    assert '10 stay: a < b & "c" > d' in hovers


def test_a_long_reason_is_shortened_but_complete_under_a_pointer(groups):
    reason = "because " * 40 + "of this"
    written, hovers = texts(
        draw(replace(groups, pinned=(replace(groups.pinned[0], reason=reason),)))
    )
    assert f"10 stay: {reason}" in hovers
    assert any(text.startswith("10 stay: because") and len(text) < 90 for text in written)


def test_what_is_never_reached_and_ops_without_a_rule_are_written(groups):
    changed = replace(
        groups, unreached=("spare.weight", "spare.bias"), unknown={"fft": "block (a.py:1)"}
    )
    written, _ = texts(draw(changed))
    assert written.count("it is not reached by the example inputs") == 1
    assert "spare" in written
    assert "op without a rule: fft, at block (a.py:1)" in written


class Mixing(nn.Module):
    """Multiplies by a constant matrix."""

    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.randn(4, 6))
        self.register_buffer("unused", torch.randn(4))

    def forward(self, x):
        return x @ self.matrix


def test_buffers_are_drawn_where_they_have_channels():
    model = nn.Sequential(nn.Linear(3, 4), Mixing(), nn.Flatten())
    written, _ = texts(draw(channel_groups(model, torch.zeros(2, 3))))
    assert "4×6" in written
    assert any(text.startswith("6 stay") for text in written)


def test_a_model_without_any_group_has_a_picture():
    written, _ = texts(draw(channel_groups(nn.Linear(3, 2), torch.zeros(2, 3))))
    assert "0 channel groups, 0 units can be removed" in written


def test_the_file_needs_nothing_but_itself_and_knows_dark_screens(groups, tmp_path):
    path = tmp_path / "groups.svg"
    groups.save_svg(path)
    picture = path.read_text(encoding="utf-8")
    assert picture == draw(groups)
    assert "prefers-color-scheme:dark" in picture
    assert "<script" not in picture
    assert "url(" not in picture
    assert "@import" not in picture
    assert picture.count("http") == 1  # the namespace


def test_the_same_model_gives_the_same_picture():
    def picture():
        return draw(channel_groups(lenet(), torch.zeros(2, 1, 8, 8)))

    assert picture() == picture()


def test_a_picture_of_160_layers_is_below_300_kilobytes():
    """Every layer reads all that came before: the most lines and dots there can be."""
    names = [f"features.denseblock.layer{i}.conv.weight" for i in range(160)]
    units = np.arange(2)
    groups = []
    for i, name in enumerate(names[:-1]):
        read = (Slice(later, 1, units, False) for later in names[i + 1 :])
        groups.append(Group(name, 2, (Slice(name, 0, units, True), *read)))
    analysis = SimpleNamespace(
        axes={name: SimpleNamespace(shape=(2, 320, 3, 3)) for name in names},
        walk=SimpleNamespace(outputs={(name, 0) for name in names}),
        graph=SimpleNamespace(trained={}),
    )
    picture = draw(ChannelGroups(tuple(groups), (), (), {}, analysis))
    assert picture.count("h0") > 160 * 159
    assert len(picture.encode()) < 300_000
