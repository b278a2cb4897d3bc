"""The report as data: what is saved comes back, and nothing else is taken for a report."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput
from lilliput.errors import LilliputError, StateError
from lilliput.report.document import Curve, LayerRow, Report

SCHEMA = Path(lilliput.__file__).parents[2] / "docs" / "report.schema.json"


def test_what_is_saved_comes_back(large, tmp_path):
    large.save(tmp_path / "report.html")
    assert {x.name for x in tmp_path.iterdir()} == {"report.html", "report.json"}
    assert Report.load(tmp_path / "report.json") == large


def test_a_name_without_an_ending_gets_one(tmp_path):
    Report().save(tmp_path / "v1.2")
    assert {x.name for x in tmp_path.iterdir()} == {"v1.2.html", "v1.2.json"}


def test_a_page_from_the_loaded_data_is_the_same(large, tmp_path):
    large.save(tmp_path / "report.html")
    again = Report.load(tmp_path / "report.json").to_html()
    assert again == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_is_written_where_the_page_cannot_be_made(monkeypatch, tmp_path):
    def fail(self):
        raise RuntimeError("no page")

    monkeypatch.setattr(Report, "to_html", fail)
    with pytest.raises(RuntimeError):
        Report().save(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_published_schema_is_the_current_one():
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == Report.json_schema()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no readable report"),
        ("{", "no readable report"),
        ("<!doctype html>", "no readable report"),
        ("[" * 100_000, "no readable report"),
        ("[]", "not a report"),
        ('{"before": {}, "after": {}}', "not a report"),
        ('{"schema_version": 2}', "this version reads 1"),
        ('{"schema_version": true}', "this version reads 1"),
        ('{"schema_version": 1, "extra": 1}', "extra"),
        ('{"schema_version": 1, "layers": {}}', "layers"),
        (
            '{"schema_version": 1, "layers": [{"name": "a", "parameters": -1}]}',
            "layers.0.parameters",
        ),
        ('{"schema_version": 1, "points": [{"name": "a", "bytes": NaN}]}', "points.0.bytes"),
        ('{"schema_version": 1, "receipt": {}}', "not a receipt"),
        ('{"schema_version": 1, "receipt": {"before": 1, "after": 2}}', "not a receipt"),
        (
            '{"schema_version": 1, "receipt": {"before": {"name": "a", "bytes": "x"}, '
            '"after": {"name": "b", "bytes": 1}}}',
            "not a receipt",
        ),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(text, said, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StateError) as refused:
        Report.load(path)
    assert said in str(refused.value) and str(path) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_cut_file_is_refused(large, tmp_path):
    path = tmp_path / "report.json"
    text = large.to_json()
    for share in (0.1, 0.5, 0.999):
        path.write_text(text[: int(len(text) * share)], encoding="utf-8")
        with pytest.raises(LilliputError, match="no readable report"):
            Report.load(path)


JUNK = [
    None,
    True,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "<b>",
    "\0",
    [],
    [None],
    {},
    {"a": 1},
    [[0.5]],
]


def places(data, path=()):
    """Every place in a tree of lists and dicts."""
    yield path
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data[:3])
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_a_report_with_junk_in_it_is_refused_or_rendered(hostile, seed, tmp_path):
    draw, text, path = random.Random(seed), hostile.to_json(), tmp_path / "report.json"
    known = [x for x in places(json.loads(text)) if x]
    for _ in range(60):
        data = json.loads(text)
        *way, last = draw.choice(known)
        inner = data
        for key in way:
            inner = inner[key]
        inner[last] = draw.choice(JUNK)
        path.write_text(json.dumps(data), encoding="utf-8")
        try:
            report = Report.load(path)
        except LilliputError:
            continue
        assert "<main" in report.to_html()


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(LilliputError, match="no readable report"):
            Report.load(path)


def test_other_bytes_than_text_are_refused(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(LilliputError, match="no readable report"):
        Report.load(path)


def test_names_that_no_file_can_hold_are_made_readable(tmp_path):
    report = Report(title="half \ud800, zero \0", layers=[LayerRow(name="\udfff")])
    report.save(tmp_path / "report.html")
    assert Report.load(tmp_path / "report.json").title == "half ?, zero \N{REPLACEMENT CHARACTER}"


def test_numbers_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        Curve(layer="fc", points=[(0.5, float("nan"))])


def test_kept_counts_what_was_cut_and_what_is_zero():
    row = LayerRow(name="a", parameters=50, parameters_before=100, nonzeros=25)
    assert row.kept == 0.25
    assert LayerRow(name="a", parameters=50, nonzeros=25).kept == 0.5
    assert LayerRow(name="a").kept is None


def test_reading_a_report_imports_no_framework():
    code = (
        "import sys; from lilliput.report.document import Report; import lilliput.measure.receipt; "
        "print([m for m in ('torch', 'keras', 'tensorflow', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_that_are_no_table_are_left_out_of_the_page():
    assert "<main" in Report(title="a", environment={"packages": "junk", "cpu": "x"}).to_html()
