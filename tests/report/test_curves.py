from xml.etree import ElementTree

import pytest

from lilliput.charts.colors import DARK, LIGHT, SERIES_DARK, SERIES_LIGHT
from lilliput.charts.curves import draw_curves

SVG = "{http://www.w3.org/2000/svg}"


def layers(count):
    return {
        f"block{i}.conv": {s / 10: 0.9 - i * (s / 10) ** 3 / count for s in range(1, 10)}
        for i in range(count)
    }


def lines_of(root):
    """Return the path of each layer, by the name that a pointer over it shows."""
    return {x[0].text: x for x in root.iter(f"{SVG}path") if len(x)}


def parse(svg):
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    return root, texts


@pytest.mark.parametrize(("count", "named"), [(1, 1), (3, 3), (8, 8), (9, 6), (60, 6)])
def test_few_layers_are_all_named_and_of_many_the_most_sensitive(count, named):
    root, texts = parse(draw_curves(layers(count), 0.9, 0.8))
    shown = [text for text in texts if text.startswith("block")]
    assert set(shown) == {f"block{i}.conv" for i in range(count - named, count)}
    assert len(lines_of(root)) == count
    grey = [text for text in texts if text.startswith("grey")]
    assert grey == ([f"grey: {count - named} less sensitive layers"] if count > named else [])
    assert {"unpruned 0.9", "limit 0.8"} <= set(texts)


def test_names_do_not_overlap_and_nothing_leaves_the_drawing():
    root, _ = parse(draw_curves(layers(60), 0.9, 0.8))
    texts = [x for x in root.iter(f"{SVG}text") if x.text.startswith("block")]
    heights = sorted(float(x.get("y")) for x in texts)
    assert all(b - a >= 15 for a, b in zip(heights, heights[1:], strict=False))
    assert len(lines_of(root)) == 60
    for line in lines_of(root).values():
        for point in line.get("d").lstrip("M").split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= 800
            assert 0 <= y <= 440


@pytest.mark.parametrize(
    "curves",
    [
        {"flat": {0.5: 1.0}},
        {"none": {}},
        {"nan": {0.1: float("nan")}, '<&">': {0.1: -1e6}},
        {"tiny": {0.5: 1 + 1e-12}},
    ],
)
def test_odd_curves_give_a_valid_drawing(curves):
    root, _ = parse(draw_curves(curves, 1.0))
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").replace(">nan<", "")
    assert lines_of(root).keys() == curves.keys()


def test_the_drawing_needs_nothing_from_elsewhere():
    svg = draw_curves(layers(3), 0.9)
    assert "href" not in svg
    assert "url(" not in svg


def test_a_long_name_is_cut_at_its_beginning_and_whole_in_the_tooltip():
    name = "model.encoder.layers.11.attention.output.dense"
    root, texts = parse(draw_curves({name: {0.5: 0.1}}, 0.9))
    assert any(text.startswith("…") and text.endswith("output.dense") for text in texts)
    assert list(lines_of(root)) == [name]


def test_the_file_is_readable_in_light_and_dark_without_variables():
    root, _ = parse(draw_curves(layers(3), 0.9, 0.8))
    (style,) = (element.text for element in root.iter(f"{SVG}style"))
    assert "var(" not in style
    light, _, dark = style.partition("@media(prefers-color-scheme:dark)")
    for color in (LIGHT["ink"], SERIES_LIGHT[0]):
        assert color in light and color not in dark
    for color in (DARK["ink"], SERIES_DARK[0]):
        assert color in dark and color not in light


def test_a_line_is_drawn_where_its_numbers_are():
    root, _ = parse(draw_curves({"fc": {0.5: 0.5, 1.0: 0.0}}, 1.0))
    points = [tuple(map(float, p.split())) for p in lines_of(root)["fc"].get("d")[1:].split("L")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)
    assert (x0, x2) == (70, 580) and 24 < y0 < y2 < 380
