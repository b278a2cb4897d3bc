"""Drawings: well-formed whatever the numbers, and colours that can be told apart."""

from xml.etree import ElementTree

import pytest

from lilliput.charts import colors
from lilliput.charts.bars import draw_bar
from lilliput.charts.groups import draw_groups
from lilliput.charts.heatmap import draw_strip, find_strips
from lilliput.charts.histograms import draw_pair
from lilliput.charts.lines import draw_lines, rank
from lilliput.charts.scatter import costs_of, draw_scatter, front_of
from lilliput.charts.svg import nice_ticks
from lilliput.report.document import ChannelGroup, Curve, HistogramPair, LayerRow, TriedPoint


def parsed(svg):
    root = ElementTree.fromstring(svg)
    assert root.find("title").text and root.find("desc").text
    return root


@pytest.mark.parametrize(
    "points",
    [[(0.5, 0.8)], [(0.0, 0.0), (1.0, 0.0)], [(0.5, -3.0), (0.9, 1e9)], [(0.1, 1e-12)]],
    ids=str,
)
def test_curves_of_any_size_are_drawn_inside(points):
    root = parsed(draw_lines([Curve(layer="<a>", baseline=points[0][1], points=points)], "loss"))
    numbers = root.find(".//g[@class='named s0']/path").get("d")[1:].replace("L", " ").split()
    assert all(0 <= float(x) <= 600 for x in numbers)


def test_the_most_sensitive_layer_comes_first():
    flat = Curve(layer="flat", baseline=0.9, points=[(0.5, 0.89)])
    steep = Curve(layer="steep", baseline=0.9, points=[(0.5, 0.3)])
    assert [curve.layer for curve in rank([flat, steep])] == ["steep", "flat"]


def test_of_many_curves_eight_have_colours():
    curves = [Curve(layer=f"c{i}", baseline=1, points=[(0.5, i / 20)]) for i in range(20)]
    root = parsed(draw_lines(curves, "accuracy"))
    groups = [g.get("class") for g in root.iter("g")]
    assert sum(x.startswith("named") for x in groups) == 8
    assert len(root.findall(".//g[@class='other']/path")) == 12


def test_the_front_is_what_no_other_point_beats():
    spots = [(3.0, 0.9, "c"), (1.0, 0.8, "a"), (2.0, 0.7, "beaten"), (4.0, 0.9, "dearer")]
    assert [name for _, _, name in front_of(spots)] == ["a", "c"]


def test_costs_that_only_one_point_has_are_left_out():
    tried = [
        TriedPoint(name="a", bytes=1, macs=2, metric=0.5),
        TriedPoint(name="b", bytes=2, metric=1),
    ]
    assert costs_of(tried) == ["bytes"]
    root = parsed(draw_scatter(tried, "bytes", "accuracy"))
    assert len(root.findall("circle")) == 2
    assert [x.text for x in root.findall("text[@class='mark']")] == ["1", "2"]


def test_equal_points_are_drawn():
    tried = [TriedPoint(name=str(i), p50=0, metric=0) for i in range(2)]
    parsed(draw_scatter(tried, "p50", "accuracy"))


def test_a_strip_has_a_cell_per_layer_and_shows_what_is_unknown():
    layers = [LayerRow(name="a", parameters=4, nonzeros=1), LayerRow(name="b")]
    (strip,) = find_strips(layers)
    root = parsed(draw_strip(strip, layers, 1))
    cells = {x.get("class"): x.get("d").count("M") for x in root.findall("path")}
    assert cells == {"k1": 1, "none": 1}


@pytest.mark.parametrize("bins", [[0], [0, 0], [1000], [990, 0, 10], [1] * 64])
def test_histograms_stay_inside(bins):
    pair = HistogramPair(layer="a", target="weight", low=-1, high=1, before=bins, after=bins)
    root = parsed(draw_pair(pair, "hist-1"))
    heights = [
        float(x.split("H")[0]) for x in root.find("path").get("d").rstrip("z").split("V")[1:]
    ]
    assert all(4 <= y <= 84 for y in heights)


def test_groups_are_lines_past_their_layers():
    groups = [
        ChannelGroup(name="a.weight", size=8, makes=["a"], passes=["norm"], reads=["b"]),
        ChannelGroup(name="b.weight", size=4, makes=["b"], reads=["c"], rows=2),
        ChannelGroup(name="c.weight", size=10, makes=["c"], reason="they are the model's output"),
        ChannelGroup(name="lost", size=1),
    ]
    root = parsed(draw_groups(groups, ["a", "norm", "b", "c"]))
    texts = [
        "".join(x.itertext()).removeprefix(x.findtext("title", "")) for x in root.findall("text")
    ]
    names = ["a", "norm", "b", "c"]
    assert [x for x in texts if x in names] == names
    assert "8 units" in texts and "4 units in 2 rows" in texts
    assert "10 stay: they are the model's output" in texts


def test_a_bar_does_not_leave_its_box():
    root = ElementTree.fromstring(draw_bar(3.0, -1.0))
    assert [x.get("width") for x in root] == ["0", "100"]


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 1), (-5, -4.9), (0, 1e-15), (0, 4e12)])
def test_there_are_a_few_ticks_for_any_range(low, high):
    assert 2 <= len(nice_ticks(low, high)) <= 10


def contrast(one, two):
    """Return the contrast of two colours as WCAG 2 defines it: 1 (none) to 21."""
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_of_black_and_white_is_the_largest_there_is():
    assert contrast("#000000", "#ffffff") == 21
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


TEXTS = ("ink", "soft", "accent", "warn")


@pytest.mark.parametrize("names", [colors.LIGHT, colors.DARK], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(names):
    for text in TEXTS:
        for ground in ("paper", "card"):
            assert contrast(names[text], names[ground]) >= 4.5, (text, ground)
    assert contrast(names["ink"], names["wash"]) >= 4.5
    assert contrast(names["ink"], names["paper"]) >= 12


@pytest.mark.parametrize("names", [colors.LIGHT, colors.DARK], ids=["light", "dark"])
def test_what_carries_meaning_in_drawings_stands_out(names):
    for part in ("accent", "before"):
        assert contrast(names[part], names["card"]) >= 3, part
    assert contrast(names["accent"], names["faint"]) >= 3


def test_named_lines_are_readable_as_text():
    for family, names in ((colors.SERIES_LIGHT, colors.LIGHT), (colors.SERIES_DARK, colors.DARK)):
        assert len(set(family)) == 8
        assert min(contrast(x, names["card"]) for x in family) >= 4.5


@pytest.mark.parametrize(
    ("ramp", "ground"),
    [
        (colors.KEPT_LIGHT, colors.LIGHT),
        (colors.KEPT_DARK, colors.DARK),
        (colors.NOISE_LIGHT, colors.LIGHT),
        (colors.NOISE_DARK, colors.DARK),
    ],
)
def test_ramps_go_one_way_away_from_the_ground(ramp, ground):
    steps = [contrast(x, ground["card"]) for x in ramp]
    assert steps == sorted(steps) and steps[-1] >= 4.5
