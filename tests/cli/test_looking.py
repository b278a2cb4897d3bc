"""Commands that only look: list, doctor, config, inspect, analyze, benchmark, compare, report."""

import json

import pytest

RULES = "- {op_types: [Conv2d], sparsity: 0.5}\n- {op_names: ['2'], exclude: true}\n"


def as_json(ended):
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_list(lilliput):
    rows = {row["name"]: row for row in as_json(lilliput("list", "--json"))["algorithms"]}
    assert rows["agp"]["paper"].startswith("Zhu & Gupta 2017")
    assert (rows["lsq"]["kind"], rows["lsq"]["frameworks"]) == ("quantizer", ["torch", "keras"])
    assert (rows["svd"]["kind"], rows["svd"]["frameworks"]) == ("factorizer", ["torch"])
    assert "level" not in lilliput("list", "a*").out
    assert (
        "AGPPruner" not in lilliput("list", "AGPP*").out and "agp" in lilliput("list", "AGPP*").out
    )


def test_a_subclass_does_not_pass_for_the_paper_of_its_base(monkeypatch):
    from lilliput.cli.commands.algorithms import all_algorithms
    from lilliput.pruning.l1 import L1NormPruner
    from lilliput.registry import pruners

    class Mine(L1NormPruner):
        """Mine."""

    monkeypatch.setitem(pruners._classes, "mine", Mine)
    monkeypatch.setitem(pruners._aliases, "mine", "mine")
    rows = {row["name"]: row["paper"] for row in all_algorithms()}
    assert rows["mine"] == "" and rows["l1"].startswith("Li et al. 2017")


def test_doctor(lilliput, monkeypatch):
    found = as_json(lilliput("doctor", "--json"))
    packages = {row["name"]: row for row in found["packages"]}
    assert packages["torch"]["version"] and packages["torch"]["install"] is None
    assert {"scipy", "optuna"} <= set(packages)  # what lilliput[search] installs
    assert found["cores"] >= 1 and isinstance(found["flags"], dict)
    monkeypatch.setattr("lilliput.cli.checkup.versions_of", lambda names: {})
    text = " ".join(lilliput("doctor").out.split())
    assert "missing" in text and "no framework: pip install 'lilliput[torch]'" in text


@pytest.fixture
def rules(place):
    (place / "rules.yaml").write_text(RULES, encoding="utf-8")
    return "rules.yaml"


def test_config_check(lilliput, rules, place):
    found = as_json(lilliput("config", "check", rules, "--json"))
    assert found["rules"] == 2 and {"level", "l1", "agp"} <= set(found["fits"])
    assert "ptq" not in found["fits"]
    assert lilliput("config", "check", rules, "-a", "l1").out == "ok: 2 rules, for l1\n"
    assert lilliput("config", "check", rules, "-a", "qat").code == 2
    (place / "odd.yaml").write_text("- {op_types: [Linear], sparsitty: 0.5}\n")
    ended = lilliput("config", "check", "odd.yaml")
    assert "rule 0 → sparsitty: unknown key. Did you mean 'sparsity'?" in ended.err


def test_config_explain(lilliput, rules):
    words = ["config", "explain", rules, "--model", "tiny_cli:build", "--algorithm", "level"]
    layers = as_json(lilliput(*words, "--json"))["layers"]
    assert {row["layer"]: row["rule"] for row in layers} == {"0": 0, "2": 1, "6": None}
    text = lilliput(*words).out
    assert "excluded by rule 1" in text and "1 of 3 layers are compressed by LevelPruner" in text


def test_config_schema(lilliput):
    assert json.loads(lilliput("config", "schema", "agp").out)["type"] == "array"
    assert "steps" in as_json(lilliput("config", "schema", "recipe", "--json"))["properties"]


def test_config_migrate(lilliput, place):
    (place / "old.yaml").write_text("- {sparsity: 0.8, support_type: default}\n")
    ended = lilliput("config", "migrate", "old.yaml")
    assert ended.out == "- sparsity: 0.8\n  op_types:\n  - default\n"
    assert "'support_type' (NNI 2019) reads as 'op_types'" in ended.err
    assert lilliput("config", "migrate", "old.yaml", "-o", "new.yaml", "-q").err == ""
    assert lilliput("config", "check", "new.yaml").code == 0


def test_config_migrate_of_a_project_shows_a_diff_and_writes_on_request(lilliput, place):
    (place / "src").mkdir()
    old = "import nni\nconfig_list = [{'sparse_ratio': 0.5}]\nnni.report_final_result(1)\n"
    (place / "src" / "train.py").write_text(old)
    ended = lilliput("config", "migrate", "src")
    assert (
        "-config_list = [{'sparse_ratio': 0.5}]\n+config_list = [{'sparsity': 0.5}]\n" in ended.out
    )
    assert "1 of 1 files to change; --write changes them" in ended.out
    assert "train.py:3: nni.report_final_result: not here: " in ended.err
    assert (place / "src" / "train.py").read_text() == old
    found = as_json(lilliput("config", "migrate", "src", "--write", "--json"))
    assert found["written"] and found["files"][0]["is_changed"]
    assert (place / "src" / "train.py").read_text() == old.replace("sparse_ratio", "sparsity")
    assert (
        "--output and --algorithm require a single"
        in lilliput("config", "migrate", "src", "-o", "x").err
    )


def test_inspect(lilliput, place):
    found = as_json(lilliput("inspect", "tiny_cli:build", "--input-shape", "2x1x6x6", "--json"))
    assert found["parameters"] == 80 + 584 + 132 and found["macs"] == 36 * (72 + 576) + 128
    assert [g["units"] for g in found["groups"]] == [8, 8]
    by_name = {row["name"]: row for row in found["layers"]}
    assert by_name["0"]["compressible"] and by_name["0"]["group"] == "0.weight"
    assert by_name["6"]["pinned"] == "they are the model's output"
    text = lilliput("inspect", "tiny_cli:build").out
    assert "796 parameters" in text and "pass --inputs" in text


def test_analyze_writes_and_resumes(lilliput, place):
    words = ["analyze", "tiny_cli:build", "--evaluate", "tiny_cli:accuracy", "-o", "scan"]
    words += ["--data", "tiny_cli:batches", "--sparsities", "0.5", "--batches", "1", "--seed", "1"]
    plan = as_json(lilliput(*words, "--dry-run", "--json"))
    assert plan["dry_run"] and plan["seconds"] > 0 and not (place / "scan").exists()
    first = as_json(lilliput(*words, "--json", "--quiet"))
    assert [row["layer"] for row in first["pruning"]["layers"]] == ["0", "2"]
    assert all(row["sqnr"] > 20 for row in first["quantization"]["layers"])
    names = {path.name for path in (place / "scan").iterdir()}
    assert {"pruning.csv", "quantization.csv", "analysis.json"} <= names
    assert lilliput(*words).code == 2
    again = lilliput(*words, "--json", "--resume")
    assert json.loads(again.out) == first and "quantizing" not in again.err
    assert lilliput(*words, "--resume", "--bits", "4").code == 1  # made from something else


def test_benchmark_and_compare(lilliput, place):
    words = ["--data", "tiny_cli:batches", "--evaluate", "tiny_cli:accuracy", "--runs", "3"]
    ended = lilliput("benchmark", "tiny_cli:build", *words, "-f", "torch", "-f", "onnx", "--json")
    rows = as_json(ended)["rows"]
    assert [row["format"] for row in rows] == ["torch", "onnx"]
    assert rows[1]["max_difference"] < 1e-5 and rows[0]["metric"] == rows[1]["metric"]
    lines = lilliput("benchmark", "tiny_cli:build", *words, "-f", "torch").out.splitlines()
    assert lines[0].split()[:3] == ["format", "bytes", "accuracy"]
    receipt = as_json(lilliput("compare", "tiny_cli:build", "tiny_cli:build", *words, "--json"))
    assert receipt["max_difference"] == 0
    assert receipt["before"]["metric"] == receipt["after"]["metric"]


def test_report_of_nothing(lilliput, place):
    ended = lilliput("report", ".")
    assert ended.code == 2 and "contains no report.json" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["doctor"],
        ["demo"],
        ["inspect", "no:model"],
        ["benchmark", "no:model"],
        ["compare", "a.onnx", "b.onnx"],
        ["config", "schema", "agp"],
        ["config", "check", "rules.yaml"],
    ],
)
def test_dry_runs_do_nothing(lilliput, rules, words):
    found = as_json(lilliput(*words, "--dry-run", "--json"))
    assert found["dry_run"] and found["would"]
    assert lilliput(*words, "--dry-run").out.startswith("would\n  1. ")


def test_what_a_function_prints_stays_out_of_the_json(lilliput, place):
    text = "import tiny_cli\n\n\ndef build():\n    print('loading')\n    return tiny_cli.build()\n"
    (place / "loud.py").write_text(text, encoding="utf-8")
    ended = lilliput("inspect", "loud:build", "--json")
    assert as_json(ended)["parameters"] == 796 and ended.err == "loading\n"
    assert lilliput("inspect", "loud:build").out.startswith("loading\nlayer")


@pytest.mark.parametrize("words", [["inspect", "model.pt"], ["compare", "a.onnx", "model.pth"]])
def test_a_file_of_weights_is_refused_with_the_reason(lilliput, place, words, monkeypatch):
    monkeypatch.setattr("lilliput.cli.executed.open_executed", lambda path: None)
    ended = lilliput(*words)
    assert ended.code == 2
    assert (
        "cannot be read: it contains weights, not the model. Expected module:factory" in ended.err
    )
