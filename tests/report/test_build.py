"""A report from real parts: a small network that is analysed, pruned, cut and quantized."""

import copy

import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.measure.receipt import Figures, Receipt
from lilliput.report.build import build_report
from lilliput.report.document import Report
from lilliput.report.quantization import quantization_report
from lilliput.report.snapshot import snapshot
from lilliput.torch import (
    L1NormPruner,
    PTQQuantizer,
    SensitivityAnalysis,
    channel_groups,
    speedup,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(y + self.body(y)).mean((2, 3)))


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(4, 3, 8, 8)
    curves = SensitivityAnalysis(
        model, lambda m: float(m(x).detach().abs().mean()), sparsities=[0.3, 0.6]
    )
    curves.analysis()
    found = {"before": snapshot(model, x), "sensitivity": curves}
    found["groups"] = channel_groups(model, x)
    L1NormPruner(model, [{"op_types": ["Conv2d"], "sparsity": 0.5}], example_inputs=x).compress()
    model = speedup(model, x).model
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}])
    quantizer.compress()
    quantizer.calibrate([x])
    found["quantization"] = quantization_report(quantizer, [x])
    found["after"] = snapshot(model, x)
    before, after = found["before"], found["after"]
    found["receipt"] = Receipt(
        Figures("before", "PyTorch", before.parameters, before.nonzeros, before.macs),
        Figures("after", "PyTorch", after.parameters, after.nonzeros, after.macs),
    )
    return found


@pytest.fixture(scope="module")
def report(parts):
    return build_report(**parts, title="Net", recipe="steps: []", notes=["on random data"])


def test_layers_hold_both_sides(report):
    rows = {row.name: row for row in report.layers}
    assert list(rows) == ["stem", "norm", "body", "head"]
    stem = rows["stem"]
    assert (stem.shape_before, stem.shape) == ([8, 3, 3, 3], [4, 3, 3, 3])
    assert (stem.macs_before, stem.macs) == (64 * 8 * 27, 64 * 4 * 27)
    assert stem.kept == pytest.approx(0.5) and stem.bits == 8
    assert set(stem.sqnr) >= {"weight", "input"} and stem.worst_sqnr > 20
    assert rows["norm"].is_minor and not rows["head"].is_minor


def test_histograms_hold_weights_and_activations_on_one_axis(report):
    kinds = {(pair.layer, pair.target) for pair in report.histograms}
    assert kinds >= {("stem", "weight"), ("stem", "input"), ("head", "weight")}
    for pair in report.histograms:
        assert len(pair.before) == len(pair.after)
        assert 960 <= sum(pair.before) <= 1040 and 960 <= sum(pair.after) <= 1040
        assert pair.low < pair.high
    bins = {(pair.layer, pair.target): len(pair.before) for pair in report.histograms}
    assert bins["body", "weight"] == 64 and bins["head", "weight"] == 16  # it has 32 values


def test_curves_and_groups_are_taken_over(report, parts):
    assert {curve.layer for curve in report.sensitivity} == {"stem", "body", "head"}
    assert report.sensitivity[0].points[0][0] == 0.3
    assert report.sensitivity[0].baseline == pytest.approx(
        parts["sensitivity"].ori_metric, rel=1e-4
    )
    group = next(g for g in report.groups if not g.reason)
    assert group.size == 8 and set(group.makes) == {"stem", "body"}
    assert "norm" in group.passes and "head" in group.reads
    assert any("output" in g.reason for g in report.groups)


def test_it_is_saved_loaded_and_rendered(report, tmp_path):
    report.save(tmp_path / "report.html")
    assert Report.load(tmp_path / "report.json") == report
    page = report.to_html()
    for key in ("receipt", "layers", "map", "sensitivity", "histograms", "groups", "environment"):
        assert f'<section id="{key}"' in page


def test_plain_data_does_as_well(report, parts):
    given = dict(parts)
    given["receipt"] = parts["receipt"].to_dict()
    given["quantization"] = parts["quantization"].to_dict()
    given["sensitivity"] = parts["sensitivity"].sensitivities
    again = build_report(**given)
    assert again.layers == report.layers and again.histograms == report.histograms
    assert [c.points for c in again.sensitivity] == [c.points for c in report.sensitivity]
    listed = build_report(sensitivity=[c.model_dump() for c in report.sensitivity])
    assert listed.sensitivity == report.sensitivity


def test_an_export_names_the_kernels_and_its_notes(parts):
    export = {"layers": [{"name": "stem", "kernel": "QLinearConv"}], "notes": ["a note"]}
    made = build_report(after=parts["after"], export=export)
    assert made.layers[0].kernel == "QLinearConv" and made.notes == ["a note"]


def test_one_side_alone_has_nothing_to_compare(parts):
    for side in ("before", "after"):
        rows = build_report(**{side: parts[side]}).layers
        assert rows[0].shape and rows[0].shape_before is None


def test_a_layer_that_is_gone_keeps_its_row(parts):
    after = copy.deepcopy(parts["after"]).model_copy(update={"layers": parts["after"].layers[:-1]})
    row = build_report(before=parts["before"], after=after).layers[-1]
    assert (row.name, row.parameters, row.macs, row.kept) == ("head", 0, 0, 0)


def test_other_names_are_not_compared(parts):
    renamed = [x.model_copy(update={"name": f"g_{x.name}"}) for x in parts["after"].layers]
    after = parts["after"].model_copy(update={"layers": renamed})
    rows = build_report(before=parts["before"], after=after).layers
    assert [row.name for row in rows] == ["g_stem", "g_norm", "g_body", "g_head"]


def test_points_are_checked():
    made = build_report(points=[{"name": "a", "bytes": 3, "metric": float("nan")}])
    assert made.points[0].bytes == 3 and made.points[0].metric is None
    with pytest.raises(ConfigError, match="expected 'name'"):
        build_report(points=[{"name": "a", "size": 3}])
