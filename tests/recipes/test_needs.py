"""What is not installed is named before any work, in a dry run as well."""

import pytest

from lilliput.errors import MissingExtraError
from lilliput.recipes import load_recipe, needs, plan, run

STEPS = [
    {"prune": "l1", "config": [{"sparsity": 0.5}]},
    {"export": "onnx", "file": "a.onnx"},
    {"export": "onnx", "file": "b.onnx"},
]
RECIPE = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches", "steps": STEPS}


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    from pathlib import Path

    pytest.importorskip("torch")
    monkeypatch.setattr(needs, "is_installed", lambda name: not name.startswith("onnxs"))
    monkeypatch.chdir(Path(__file__).parent / "project")
    return RECIPE


def test_a_run_names_all_missing_packages_before_it_does_anything(recipe, tmp_path):
    events = []
    with pytest.raises(MissingExtraError) as error:
        run(recipe, tmp_path / "run", progress=events.append)
    assert str(error.value).splitlines() == [
        f"step {step}: export: onnx needs onnxscript: pip install 'lilliput[onnx]'"
        for step in (2, 3)
    ]
    assert not events and not (tmp_path / "run" / "run.json").exists()


def test_a_dry_run_names_them_too(recipe):
    with pytest.raises(MissingExtraError, match="step 2: export: onnx needs onnxscript"):
        plan(recipe)


def test_formats_need_what_writes_and_executes_them(monkeypatch):
    monkeypatch.setattr(needs, "is_installed", lambda name: False)
    asked = load_recipe({**RECIPE, "steps": [{"export": "litert", "file": "a.tflite"}]})
    with pytest.raises(MissingExtraError, match=r"tensorflow, ai_edge_litert: .*\[litert\]"):
        needs.check_installed(asked, "keras")
