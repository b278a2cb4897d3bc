from xml.etree import ElementTree

import pytest

from lilliput.pruning.sensitivity_curves import draw_curves

SVG = "{http://www.w3.org/2000/svg}"


def layers(count):
    return {
        f"block{i}.conv": {s / 10: 0.9 - i * (s / 10) ** 3 / count for s in range(1, 10)}
        for i in range(count)
    }


def parse(svg):
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    return root, texts


@pytest.mark.parametrize(("count", "named"), [(1, 1), (3, 3), (8, 8), (9, 6), (60, 6)])
def test_few_layers_are_all_named_and_of_many_the_most_sensitive(count, named):
    root, texts = parse(draw_curves(layers(count), 0.9, 0.8))
    shown = [text for text in texts if text.startswith("block")]
    assert set(shown) == {f"block{i}.conv" for i in range(count - named, count)}
    assert len(list(root.iter(f"{SVG}polyline"))) == count
    grey = [text for text in texts if text.startswith("grey")]
    assert grey == ([f"grey: {count - named} less sensitive layers"] if count > named else [])
    assert {"unpruned 0.9", "limit 0.8"} <= set(texts)


def test_names_do_not_overlap_and_nothing_leaves_the_drawing():
    root, _ = parse(draw_curves(layers(60), 0.9, 0.8))
    texts = [x for x in root.iter(f"{SVG}text") if x.text.startswith("block")]
    heights = sorted(float(x.get("y")) for x in texts)
    assert all(b - a >= 15 for a, b in zip(heights, heights[1:], strict=False))
    for line in root.iter(f"{SVG}polyline"):
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
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
    assert len(list(root.iter(f"{SVG}polyline"))) == len(curves)


def test_the_drawing_needs_nothing_from_elsewhere():
    svg = draw_curves(layers(3), 0.9)
    assert "href" not in svg
    assert "url(" not in svg


def test_a_long_name_is_cut_at_its_beginning_and_whole_in_the_tooltip():
    name = "model.encoder.layers.11.attention.output.dense"
    root, texts = parse(draw_curves({name: {0.5: 0.1}}, 0.9))
    assert any(text.startswith("…") and text.endswith("output.dense") for text in texts)
    assert [title.text for title in root.iter(f"{SVG}title")] == [name]
