"""Steps that work towards a budget: what is found is used, a killed step goes on, a plan says how much."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lilliput.errors import ConfigError, MissingExtraError
from lilliput.recipes import load_recipe, plan, run

for name in ("torch", "scipy", "onnxruntime", "onnxscript"):
    pytest.importorskip(name)

PROJECT = Path(__file__).parent / "project"
GOAL = PROJECT / "goal.yaml"


def with_steps(*steps, **others):
    top = {
        "lilliput": 1,
        "model": "recipe_goal:build",
        "data": "recipe_tiny:batches",
        "evaluate": "recipe_goal:accuracy",
        **others,
    }
    return {key: value for key, value in top.items() if value is not None} | {"steps": list(steps)}


SEARCH = {
    "search": "knapsack",
    "budget": {"macs": 0.6},
    "config": [{"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}}],
    "trials": 2,
}


@pytest.fixture
def project(monkeypatch):
    monkeypatch.syspath_prepend(PROJECT)
    monkeypatch.chdir(PROJECT)
    import recipe_goal

    recipe_goal.calls.clear()
    yield recipe_goal
    recipe_goal.calls.clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of goal.yaml, without interruption, and how often it evaluated."""
    folder = tmp_path_factory.mktemp("goal") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT)
        import recipe_goal

        recipe_goal.calls.clear()
        result = run(GOAL, folder, progress=False)
        return result, len(recipe_goal.calls)


def test_what_a_search_finds_is_pruned_cut_and_quantized(whole):
    result, _ = whole
    found = json.loads((result.folder / "found.json").read_text())
    widths = {"0": 16, "4": 16}
    pruned = {
        name: rule["sparsity"] for rule in found for name in rule["op_names"] if "sparsity" in rule
    }
    left = {name: n - round(n * pruned.get(name, 0)) for name, n in widths.items()}
    macs = 6 * left["0"] + left["0"] * left["4"] + left["4"] * 3
    assert macs <= 0.6 * (6 * 16 + 16 * 16 + 16 * 3)
    assert result.receipt.after.macs == macs
    assert "found.json" in {path.name for path in result.files}
    assert (result.folder / "search-1" / "model.onnx").exists()


def test_a_search_that_was_interrupted_goes_on_where_it_was(
    whole, project, tmp_path, monkeypatch, digest
):
    result, calls = whole
    monkeypatch.setenv("STOP_AT", "4")  # after the model, the baseline of the search and a trial
    with pytest.raises(SystemExit):
        run(GOAL, tmp_path / "run", progress=False)
    assert len(project.calls) == 4
    monkeypatch.delenv("STOP_AT")
    run(GOAL, tmp_path / "run", progress=False, resume=True)
    assert len(project.calls) == calls + 1  # the one that was under way
    assert digest(tmp_path / "run") == digest(result.folder)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_search_ends_in_the_same_files(whole, tmp_path, digest):
    result, _ = whole
    code = "import sys; from lilliput.recipes import run; run(*sys.argv[1:], progress=False, resume=True)"
    paths = os.pathsep.join([str(PROJECT), *sys.path])

    def start(**given):
        command = [sys.executable, "-c", code, GOAL, tmp_path / "run"]
        environment = {**os.environ, "PYTHONPATH": paths, **given}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    for moment in ("2", "3", "2"):  # of each process: so that it gets further every time
        assert start(KILL_AT=moment).returncode == -signal.SIGKILL
    done = start()
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path / "run") == digest(result.folder)


def test_a_plan_tells_trials_and_time(project):
    found = plan(GOAL)
    search = found.steps[0]
    assert search.trials == 3 and search.seconds > 0 and found.seconds >= search.seconds
    assert search.rules["sparsity of"] == ["0", "4"]
    assert "1. search (knapsack), at most 3 trials, about " in str(found)
    assert found.to_dict()["steps"][0]["trials"] == 3


AUTO = {"auto": {"macs": 0.6}, "config": SEARCH["config"], "trials": 2, "epochs": 0}


@pytest.mark.slow
def test_auto_goes_on_and_ends_with_the_file_that_keeps_the_budget(project, tmp_path, monkeypatch):
    recipe, folder = with_steps({**AUTO, "trials": 1}), tmp_path / "run"
    assert "1. auto, at most 1 trials" in str(plan(recipe))
    project.calls.clear()
    monkeypatch.setenv("STOP_AT", "3")  # after the model and the baseline
    with pytest.raises(SystemExit):
        run(recipe, folder, progress=False)
    monkeypatch.delenv("STOP_AT")
    result = run(recipe, folder, progress=False, resume=True)
    receipt = result.receipt
    assert receipt.after.macs <= 0.6 * receipt.before.macs
    assert {"model.onnx", "model.safetensors"} <= {path.name for path in result.files}
    made = folder / "auto-1" / "model.onnx"
    assert (folder / "model.onnx").read_bytes() == made.read_bytes()
    assert any("model.onnx was written by auto" in note for note in receipt.notes)


@pytest.mark.slow
def test_auto_ends_in_the_same_file_after_an_interruption(project, tmp_path, monkeypatch):
    whole = run(with_steps(AUTO), tmp_path / "whole", progress=False)
    calls = len(project.calls)
    project.calls.clear()
    monkeypatch.setenv("STOP_AT", "4")
    with pytest.raises(SystemExit):
        run(with_steps(AUTO), tmp_path / "run", progress=False)
    monkeypatch.delenv("STOP_AT")
    again = run(with_steps(AUTO), tmp_path / "run", progress=False, resume=True)
    assert len(project.calls) <= calls + 2
    one, two = (x.folder / "model.onnx" for x in (whole, again))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_a_search_that_prunes_nothing_leaves_its_steps_with_nothing_to_do(project, tmp_path):
    search = {**SEARCH, "budget": {"macs": 0.9999}, "trials": 1}
    search["config"] = [{"op_types": ["Linear"], "sparsity": 0, "quant_bits": {"choose": [8, 4]}}]
    search["budget"] = {"average_bits": 8}
    steps = [search, {"prune": "l1", "config": "found"}, {"quantize": "ptq", "config": "found"}]
    result = run(with_steps(*steps), tmp_path / "run", progress=False)
    assert any(
        "prune (l1): skipped, since the search found that no layer needs it" in x
        for x in result.receipt.notes
    )


@pytest.mark.parametrize(
    ("steps", "others", "message"),
    [
        ([{**SEARCH, "budget": {"macs": -1}}], {}, "step 1 → budget: macs: received -1"),
        ([{**SEARCH, "search": "knapsak"}], {}, "Did you mean 'knapsack'"),
        ([{**SEARCH, "target": "onnxruntim"}], {}, "Did you mean 'onnxruntime'"),
        ([{**SEARCH, "pruner": "l11"}], {}, "step 1 → pruner"),
        ([{**SEARCH, "trails": 3}], {}, "unknown key. Did you mean 'trials'"),
        ([{"auto": {}}], {}, "step 1 → auto: .*expected a dict such as"),
        ([{"auto": {"latency": "fast"}}], {}, "step 1 → auto: latency: received 'fast'"),
        ([SEARCH], {"evaluate": None}, "step 1 → search: needs 'evaluate'"),
        ([SEARCH], {"data": None, "inputs": "recipe_tiny:data"}, "step 1 → search: needs 'data'"),
        ([{"prune": "l1", "config": "found"}], {}, "uses 'found', but there is no search step"),
        ([SEARCH, {"prune": "l2", "config": "found"}], {}, "searched for 'l1'; use the same"),
        ([{"auto": {"macs": 0.5}}, {"speedup": {}}], {}, "has to be the last step"),
        (
            [{"export": "onnx", "file": "model.onnx"}, {"auto": {"macs": 0.5}}],
            {},
            "step 2 → auto: writes a file 'model' of the target",
        ),
        (
            [{"prune": "l1", "config": [{"op_types": ["Linear"], "sparsity": 0.5}]}, SEARCH],
            {},
            "step 2 → search: comes after prune or quantize",
        ),
        ([{**SEARCH, "config": "no.yaml"}], {}, "step 1 → config"),
    ],
)
def test_mistakes_are_found_before_anything_runs(steps, others, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(with_steps(*steps, **others))


def test_choices_that_no_layer_takes_are_found_before_anything_runs(project, tmp_path):
    search = {**SEARCH, "config": [{"op_types": ["Conv2d"], "sparsity": {"choose": [0, 0.5]}}]}
    with pytest.raises(ConfigError, match=r"step 1 → rule 0.*'Conv2d'.*matches no layer"):
        run(with_steps(search), tmp_path / "run", progress=False)
    assert project.calls == []


def test_what_a_search_needs_is_named_before_any_work(project, tmp_path, monkeypatch):
    monkeypatch.setattr("lilliput.recipes.needs.is_installed", lambda name: name != "optuna")
    search = {**SEARCH, "search": "bayes"}
    with pytest.raises(
        MissingExtraError, match=r"step 1: search: needs optuna: pip install 'lilliput\[search"
    ):
        run(with_steps(search), tmp_path / "run", progress=False)
    assert project.calls == []
