"""Two reports as one."""

from lilliput.measure.receipt import Figures, Receipt
from lilliput.report.compare import compare_reports
from lilliput.report.document import LayerRow, Report, TriedPoint


def make(title, size, layers, **parts):
    before = Figures("trained model", "PyTorch", 100, 100, 1000, 400, 2.0, 2.1, 9, 0.9)
    after = Figures("small.onnx", "PyTorch", size, size, 10 * size, 4 * size, 1.0, 1.1, 9, 0.8)
    receipt = Receipt(before, after, "accuracy").to_dict()
    return Report(title=title, receipt=receipt, layers=layers, **parts)


def test_what_was_after_is_before():
    one = make(
        "half", 50, [LayerRow(name="fc", shape=[5, 10], parameters=50, nonzeros=50, macs=50)]
    )
    two = make(
        "fifth", 20, [LayerRow(name="fc", shape=[5, 4], parameters=20, nonzeros=20, macs=20)]
    )
    made = compare_reports(one, two)
    assert made.receipt["before"]["bytes"] == 200 and made.receipt["after"]["bytes"] == 80
    assert [made.receipt[x]["name"] for x in ("before", "after")] == ["half", "fifth"]
    assert made.layers[0].shape_before == [5, 10] and made.layers[0].kept == 0.4
    assert "2.5× smaller on disk" in made.to_html()


def test_points_are_put_together_and_recipes_told_apart():
    one = Report(title="a", recipe="epochs: 1\nseed: 0", points=[TriedPoint(name="x", bytes=1)])
    two = Report(title="b", recipe="epochs: 2\nseed: 0", points=[*one.points, TriedPoint(name="y")])
    made = compare_reports(one, two)
    assert [point.name for point in made.points] == ["x", "y"]
    assert "-epochs: 1\n+epochs: 2" in made.recipe
    assert compare_reports(one, one).recipe == one.recipe


def test_other_machines_are_mentioned():
    one, two = Report(environment={"cpu": "A"}), Report(environment={"cpu": "B"}, notes=["own"])
    assert compare_reports(one, two).notes == [
        "measured in different environments: cpu A and B",
        "own",
    ]
    assert compare_reports(one, one).notes == []


def test_large_reports_compare(large):
    made = compare_reports(large, large)
    assert len(made.layers) == 160
    pair = made.histograms[0]
    assert pair.before == pair.after
    assert max(abs(x - y) for x, y in zip(pair.after, large.histograms[0].after, strict=True)) <= 2
    assert all(row.kept == 1 for row in made.layers)
    assert len(made.to_html().encode()) <= 300_000
