"""A ``factorize`` step: what it does to the model, and how a run goes on after it."""

from pathlib import Path

import numpy as np
import pytest
from stopped_runs import Stopped, stop_after

pytest.importorskip("torch")


from lilliput.errors import ConfigError
from lilliput.recipes import load_recipe, load_run, plan, run
from lilliput.recipes.checkpoint import ModelEntry, read_run
from lilliput.recipes.opening import make_model

PROJECT = Path(__file__).parent / "project"
HEAD = {
    "lilliput": 1,
    "model": "recipe_tiny:build",
    "data": "recipe_tiny:batches",
    "loss": "cross_entropy",
    "optimizer": "recipe_tiny:make_optimizer",
}
FACTORIZE = {"factorize": "svd", "config": [{"op_names": ["4"], "rank": 3}]}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(PROJECT)


def recipe(*steps):
    return {**HEAD, "steps": list(steps)}


def test_the_two_layers_multiply_to_the_truncated_weight(tmp_path):
    import recipe_tiny

    result = run(recipe(FACTORIZE), tmp_path / "run", progress=False)
    weight = make_model(recipe_tiny.build, 0)[4].weight.detach().numpy().astype(np.float64)
    left, values, right = np.linalg.svd(weight)
    expected = (left[:, :3] * values[:3]) @ right[:3]
    first, second = load_run(result.folder).model[4]
    product = (second.weight @ first.weight).detach().numpy()
    np.testing.assert_allclose(product, expected, atol=1e-5)
    saved = 16 * 16 - 3 * 32
    assert result.receipt.before.parameters - result.receipt.after.parameters == saved


def test_a_run_stopped_after_each_unit_ends_with_the_same_files(tmp_path, digest):
    # Cuts before and after a factorization are replayed in their order.
    steps = recipe(
        {"prune": "l1", "config": [{"op_names": ["0"], "sparsity": 0.25}]},
        {"speedup": {}},
        FACTORIZE,
        {"finetune": {"epochs": 1}},
        {"prune": "l1", "config": [{"op_names": ["4.1"], "sparsity": 0.5}]},
        {"speedup": {}},
        {"factorize": "svd", "config": [{"op_names": ["4.0"], "rank": 2}]},
    )
    whole = run(steps, tmp_path / "whole", progress=False)
    held = read_run(whole.folder)
    assert [done.shrunk for done in held.model.factorized] == [1, 2]
    for number in range(1, held.units):
        with pytest.raises(Stopped):
            run(steps, tmp_path / "run", resume=True, progress=stop_after(number))
    run(steps, tmp_path / "run", resume=True, progress=False)
    assert digest(tmp_path / "run") == digest(whole.folder)
    model = load_run(whole.folder).model
    assert [tuple(p.shape) for p in model[4].parameters()] == [(2, 12), (3, 2), (8, 3), (8,)]


def test_a_later_run_goes_on_with_the_two_layers(tmp_path):
    first = run(recipe(FACTORIZE), tmp_path / "first", progress=False)
    quantize = {"quantize": "ptq", "config": [{"op_names": ["4.*"]}], "batches": 2}
    later = {**recipe(quantize), "model": str(first.folder)}
    found = load_run(run(later, tmp_path / "second", progress=False).folder)
    assert [layer.name for layer in found.compressors[0].selection.chosen] == ["4.0", "4.1"]


def test_a_dry_run_checks_later_rules_against_the_two_layers():
    prune = {"prune": "l1", "config": [{"op_names": ["4.1"], "sparsity": 0.5}]}
    found = plan(recipe(FACTORIZE, prune))
    assert [step.rules for step in found.steps] == [{0: ["4"]}, {0: ["4.1"]}]
    prune["config"][0]["op_names"] = ["4"]
    with pytest.raises(ConfigError, match=r"step 2 → rule 0.*'4'"):
        plan(recipe(FACTORIZE, prune))


def test_layers_that_stay_are_noted(tmp_path):
    steps = recipe({"factorize": "svd", "config": [{"op_names": ["4", "6"], "rank": 3}]})
    result = run(steps, tmp_path / "run", progress=False)
    assert any(
        note.startswith("6: not factorized, two layers of rank 3") for note in result.receipt.notes
    )
    (done,) = read_run(result.folder).model.factorized
    assert [rule["op_names"] for rule in done.config] == [["4"]]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([{"factorize": "sdv", "config": []}], "no factorizer is called 'sdv'. Did you mean 'svd'"),
        ([{"factorize": "svd"}], "step 1 → config"),
        ([{"factorize": "svd", "config": [{"rnk": 3}]}], "Did you mean 'rank'"),
        ([{"factorize": "svd", "config": [{"rank": 3, "energy": 0.5}]}], "expected one of 'rank'"),
        (
            [{"prune": "level", "config": [{"sparsity": 0.5}]}, FACTORIZE],
            "step 2 → factorize: comes after prune;",
        ),
        ([{"quantize": "ptq"}, FACTORIZE], "step 2 → factorize: comes after quantize;"),
        ([FACTORIZE, {"recover": "match"}], "step 2 → recover: comes after factorize"),
    ],
)
def test_mistakes_are_found_before_anything_runs(steps, text):
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe(*steps))
    assert text in str(caught.value)


def test_runs_from_before_there_were_factorizations_still_load():
    entry = {"framework": "torch", "factory": "recipe_tiny:build", "folder": "", "seed": 0}
    assert ModelEntry.model_validate({**entry, "shrunk": ["shrunk-0"]}).factorized == []


def test_a_run_with_compressors_on_its_model_is_refused(tmp_path):
    rules = [{"op_types": ["Linear"], "sparsity": 0.5}]
    run(recipe({"prune": "level", "config": rules}), tmp_path / "first", progress=False)
    again = {**recipe(FACTORIZE), "model": str(tmp_path / "first")}
    with pytest.raises(ConfigError, match="pruners or quantizers attached"):
        run(again, tmp_path / "second", progress=False)


def test_a_step_that_would_replace_nothing_is_refused(tmp_path):
    step = {"factorize": "svd", "config": [{"op_names": ["4"], "rank": 15}]}
    with pytest.raises(ConfigError, match=r"replaces no layer\. 4: two layers of rank 15"):
        run(recipe(step), tmp_path / "run", progress=False)


def test_weights_are_decomposed_once_in_a_run_and_not_when_it_is_loaded(tmp_path, monkeypatch):
    calls, svd = [], np.linalg.svd
    monkeypatch.setattr(
        np.linalg, "svd", lambda *args, **named: calls.append(1) or svd(*args, **named)
    )
    result = run(recipe(FACTORIZE), tmp_path / "run", progress=False)
    (done,) = read_run(result.folder).model.factorized
    assert len(calls) == len(done.config)
    calls.clear()
    load_run(result.folder)
    assert not calls


def test_a_dry_run_ranks_by_energy_what_an_earlier_step_leaves():
    # A rank that keeps nearly all of a matrix of random weights makes two layers larger than it.
    first = {"factorize": "svd", "config": [{"op_names": ["4"], "rank": 7}]}
    second = {"factorize": "svd", "config": [{"op_names": ["4.0"], "energy": 0.999}]}
    with pytest.raises(ConfigError, match=r"step 2 → factorize: replaces no layer"):
        plan(recipe(first, second))
    second["config"][0]["energy"] = 0.5
    assert [step.rules for step in plan(recipe(first, second)).steps] == [{0: ["4"]}, {0: ["4.0"]}]
