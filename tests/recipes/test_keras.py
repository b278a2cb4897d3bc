"""The same recipes on Keras."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from stopped_runs import Stopped

from lilliput.errors import UnsupportedModelError
from lilliput.recipes import load_run, run

RECIPE = Path(__file__).parent / "project" / "dense.yaml"


@pytest.mark.slow
def test_a_run_stopped_after_every_unit_ends_with_the_same_files(tmp_path, digest):
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for package in ("keras", "ai_edge_litert"):  # here: other tests do without importing them
        pytest.importorskip(package)
    events = []
    result = run(RECIPE, tmp_path / "whole", progress=events.append)
    assert result.receipt.after.metric > 0.6
    assert result.receipt.after.parameters < result.receipt.before.parameters
    assert load_run(tmp_path / "whole", trust=True).model.get_layer("first").units == 16

    def stop(event):
        if event.seconds is not None:
            raise Stopped

    for number in range(events[-1].total - 1):
        with pytest.raises(Stopped):
            run(RECIPE, tmp_path / "parts", resume=number > 0, progress=stop)
    run(RECIPE, tmp_path / "parts", resume=True, progress=False)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


@pytest.mark.slow
def test_batch_norms_of_a_pruned_model_are_recalibrated(tmp_path, monkeypatch):
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("keras")
    monkeypatch.syspath_prepend(RECIPE.parent)
    from recipe_dense import digits

    def recipe(how):
        prune = {"prune": "l1", "config": [{"op_names": ["first"], "sparsity": 0.5}]}
        head = {"lilliput": 1, "model": "recipe_dense:build_normed", "data": "recipe_dense:batches"}
        return head | {"steps": [prune, {"recover": how, "batches": 16}, {"speedup": {}}]}

    run(recipe("recalibrate"), tmp_path / "run")
    model = load_run(tmp_path / "run", trust=True).model
    kernel, bias = model.get_layer("first").get_weights()
    seen = digits()[0][:512].astype("float64") @ kernel + bias
    assert seen.shape[1] == 16
    _, _, mean, variance = model.get_layer("norm").get_weights()
    np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, seen.var(0, ddof=1), rtol=1e-4)
    run(recipe("match"), tmp_path / "matched")
    matched = load_run(tmp_path / "matched", trust=True).model
    _, _, mean, variance = matched.get_layer("norm").get_weights()
    np.testing.assert_allclose(
        mean, 0, atol=1e-5
    )  # of the original, which no digit has gone through,
    np.testing.assert_allclose(
        variance, 1, rtol=1e-4
    )  # and whose channels that are left see the same
    with pytest.raises(UnsupportedModelError, match="reconstruct works on torch models only"):
        run(recipe("reconstruct"), tmp_path / "refused")


@pytest.mark.slow
def test_a_teacher_joins_the_loss_or_replaces_it_and_a_stopped_run_ends_the_same(tmp_path, digest):
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("keras")
    head = {
        "lilliput": 1,
        "model": "recipe_dense:build",
        "data": "recipe_dense:batches",
        "evaluate": "recipe_dense:agreement",
    }
    prune = {"prune": "level", "config": [{"sparsity": 0.5}], "epochs": 1, "teacher": "original"}
    steps = [prune, {"distill": "original", "epochs": 3}]
    path = tmp_path / "taught.json"
    path.write_text(json.dumps({**head, "steps": steps}))
    shutil.copy(RECIPE.parent / "recipe_dense.py", tmp_path)
    result = run(path, tmp_path / "whole", progress=False)
    # The original is not trained, so its answers are chance; what counts is to give the same ones.
    assert result.receipt.before.metric == 1.0
    assert result.receipt.after.metric > 0.5

    def stop(event):
        if event.seconds is not None and "epoch" in event.text:
            raise Stopped

    for number in range(4):
        with pytest.raises(Stopped):
            run(path, tmp_path / "parts", resume=number > 0, progress=stop)
    run(path, tmp_path / "parts", resume=True, progress=False)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
