"""A run folder from somebody else executes no code but that of the user's own project."""

import json
import sys

import pytest

pytest.importorskip("torch")

from lilliput.errors import StateError
from lilliput.recipes import load_run, run
from lilliput.recipes.checkpoint import inside

CODE = """
import pathlib

import torch

pathlib.Path(__file__).with_name("executed").touch()


def build():
    return torch.nn.Linear(4, 2)


def batches():
    return [(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))]
"""
NAME = "trusted_toy"


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A finished run in ``run``, made in ``project``."""
    project = tmp_path / "project"
    project.mkdir()
    (project / f"{NAME}.py").write_text(CODE)
    monkeypatch.chdir(project)
    steps = [{"prune": "level", "config": [{"sparsity": 0.5}]}]
    recipe = {"lilliput": 1, "model": f"{NAME}:build", "data": f"{NAME}:batches", "steps": steps}
    run(recipe, tmp_path / "run", progress=False)
    _forget(project)
    yield tmp_path / "run"
    sys.modules.pop(NAME, None)


def _forget(project):
    sys.modules.pop(NAME, None)
    (project / "executed").unlink()


def _edit(place, **fields):
    document = json.loads((place / "run.json").read_text())
    document["model"] |= fields
    (place / "run.json").write_text(json.dumps(document))


def test_in_the_project_it_was_made_in_a_run_is_loaded(finished):
    assert load_run(finished).model.out_features == 2


def test_code_of_another_folder_is_not_executed(finished, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(StateError, match=r"trusted_toy:build of .*project.*--trust"):
        load_run(finished)
    assert not (tmp_path / "project" / "executed").exists()
    assert load_run(finished, trust=True).model.out_features == 2


def test_neither_is_code_that_came_with_the_run(finished, tmp_path, monkeypatch):
    (finished / f"{NAME}.py").write_text(CODE)
    _edit(finished, folder=str(finished))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StateError, match="--trust"):
        load_run(finished)
    assert not (finished / "executed").exists()


def test_a_project_that_was_moved_is_found_in_the_working_directory(
    finished, tmp_path, monkeypatch
):
    (tmp_path / "project").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert load_run(finished).model.out_features == 2


def test_a_recipe_that_starts_from_a_run_asks_as_well(finished, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    steps = [{"prune": "level", "config": [{"sparsity": 0.7}]}]
    recipe = {"lilliput": 1, "model": str(finished), "steps": steps}
    with pytest.raises(StateError, match="--trust"):
        run(recipe, tmp_path / "next", progress=False)
    run(recipe, tmp_path / "allowed", progress=False, trust=True)


@pytest.mark.parametrize("name", ["../project", "/etc", "shrunk-0/..", "other"])
def test_plans_lie_in_the_folder_of_the_run(finished, name):
    _edit(finished, shrunk=[name])
    with pytest.raises(StateError, match="shrunk"):
        load_run(finished)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "shrunk-0").symlink_to(tmp_path)
    with pytest.raises(StateError, match="not in the folder of the run"):
        inside(tmp_path / "run", "shrunk-0")
