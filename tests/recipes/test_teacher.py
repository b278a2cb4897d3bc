"""Steps with a teacher: what they compute, what they refuse, and that a killed run ends the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from lilliput.errors import ConfigError
from lilliput.recipes import load_recipe, plan, run
from lilliput.recipes.units import units_of

HERE = Path(__file__).parent
TAUGHT = HERE / "project" / "taught.yaml"
BASE = {
    "lilliput": 1,
    "model": "recipe_taught:build",
    "data": "recipe_taught:batches",
    "optimizer": "recipe_taught:make_optimizer",
}
MODULE = """
import torch
from torch import nn

def build():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

def batches(epoch=0):
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(4):
        yield torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)

def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "recipe_taught.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("recipe_taught", None)


@pytest.mark.parametrize("kind", ["alone", "labels", "teacher"])
def test_the_weights_at_the_end_are_those_of_the_same_loop_by_hand(project, tmp_path, kind):
    steps = {
        "alone": {"distill": "original", "epochs": 2},
        "labels": {"distill": "original", "epochs": 2, "labels": True},
        "teacher": {"finetune": {"epochs": 2, "teacher": "original"}},
    }
    prune = {"prune": "level", "config": [{"sparsity": 0.5}]}
    loss = {} if kind == "alone" else {"loss": "cross_entropy"}
    result = run({**BASE, **loss, "steps": [prune, steps[kind]]}, tmp_path / "run", progress=False)

    import recipe_taught
    from safetensors.torch import load_file

    model, teacher = recipe_taught.build(), recipe_taught.build()
    masks = []
    for layer in (model[0], model[2]):
        gone = layer.weight.abs().flatten().argsort()[: layer.weight.numel() // 2]
        mask = torch.ones(layer.weight.numel())
        mask[gone] = 0
        masks.append((layer, mask.view_as(layer.weight)))
    optimizer = recipe_taught.make_optimizer(model)
    for epoch in range(2):
        for x, y in recipe_taught.batches(epoch):
            with torch.no_grad():
                for layer, mask in masks:
                    layer.weight *= mask
            optimizer.zero_grad()
            student = model(x)
            with torch.no_grad():
                wanted = teacher(x)
            value = 4 * F.kl_div(
                (student / 2).log_softmax(1), (wanted / 2).softmax(1), reduction="batchmean"
            )
            value = value if kind == "alone" else value + F.cross_entropy(student, y)
            value.backward()
            for layer, mask in masks:
                layer.weight.grad *= mask
            optimizer.step()
    found = load_file(result.folder / "model.safetensors")
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(found[name], expected, msg=name)


def test_mistakes_are_found_before_anything_runs(project, tmp_path):
    def fault(steps, **more):
        with pytest.raises(ConfigError) as caught:
            run({**BASE, **more, "steps": steps}, tmp_path / "run", progress=False)
        assert not (tmp_path / "run" / "run.json").exists()
        return str(caught.value)

    assert "expected 'original', or module:factory" in fault([{"distill": "orginal", "epochs": 1}])
    text = fault([{"distill": "original", "epochs": 1, "config": [{"los": "kl"}]}])
    assert "config → rule 0 → los: unknown key. Did you mean 'loss'" in text
    text = fault([{"distill": "original", "epochs": 1, "config": [{"op_names": ["9"]}]}])
    assert "step 1" in text and "'9' matches no layer" in text
    text = fault(
        [{"finetune": {"epochs": 1, "teacher": "original"}}], train="recipe_taught:batches"
    )
    assert "has its own 'train'" in text
    text = fault([{"distill": "original", "epochs": 1, "labels": True}])
    assert "neither 'loss' nor 'train'" in text
    text = fault([{"distill": "recipe_taught:nobody", "epochs": 1}])
    assert "step 1 → teacher" in text and "nobody" in text


def test_a_plan_shows_what_is_compared(project):
    rules = [{}, {"op_names": ["0"]}]
    shown = str(plan({**BASE, "steps": [{"distill": "original", "epochs": 2, "config": rules}]}))
    assert "distill (original), 2 epochs" in shown
    assert "rule 0: 1 layer: (model)" in shown


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_a_run_with_teachers_that_is_killed_ends_with_the_same_files(tmp_path, digest):
    units = units_of(load_recipe(TAUGHT))
    numbers = {unit.text: str(unit.index + 1) for unit in units}
    moments = [
        numbers["prune (linear): epoch 2 of 2"],
        numbers["distill (original): epoch 2 of 2"],
        numbers["distill (recipe_tiny:build): epoch 1 of 1"] + "+",
    ]
    command = [sys.executable, HERE / "kill.py", TAUGHT, tmp_path, *moments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert "model.safetensors" in digest(tmp_path / "whole")
