"""Pruners that change their minds while a model trains, in recipes: stopped and continued bit for bit."""

from pathlib import Path

import pytest
from stopped_runs import Stopped, stop_after

pytest.importorskip("torch")

from lilliput.recipes import run
from lilliput.torch import AGPPruner, LotteryTicketPruner

TINY = Path(__file__).parent / "project" / "recipe_tiny.py"
STEPS = {
    "agp": ("final_sparsity: 0.8, end_epoch: 2", "soft: true"),
    "rigl": ("total_sparsity: 0.8", "training_steps: 48, update_every: 3"),
    "movement": ("sparsity: 0.8", "cool_down_beginning_step: 12"),
    "str": ("", "decay: 0.3, start: -2.5"),
    "admm": ("sparsity: 0.8", "iterations: 2"),
    "sparse_vd": ("sparsity: 0.8", "training_epochs: 2, training_examples: 96"),
    "lottery_ticket": ("sparsity: 0.8, prune_iterations: 2", ""),
}


def recipe(folder, name):
    """Write a recipe that prunes in training, fine-tunes and measures."""
    rule, options = STEPS[name]
    text = f"""\
lilliput: 1
model: recipe_tiny:build
data: recipe_tiny:batches
loss: cross_entropy
optimizer: recipe_tiny:make_optimizer
evaluate: recipe_tiny:accuracy
steps:
  - prune: {name}
    config: [{{op_types: [Linear]{rule and ", "}{rule}}}]
    options: {{{options}}}
    epochs: 3
  - finetune: {{epochs: 2}}
"""
    folder.mkdir(exist_ok=True)
    (folder / "recipe_tiny.py").write_text(TINY.read_text())
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


@pytest.mark.parametrize("name", list(STEPS))
def test_a_stopped_run_goes_on_as_if_it_never_stopped(name, tmp_path, digest):
    path = recipe(tmp_path / "project", name)
    whole = run(path, tmp_path / "whole", progress=False)

    with pytest.raises(Stopped):
        run(path, tmp_path / "parts", progress=stop_after(4))
    run(path, tmp_path / "parts", resume=True, progress=False)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    after = whole.receipt.after
    assert after.nonzeros < 0.75 * whole.receipt.before.nonzeros, (name, after)
    assert after.metric > 0.5


@pytest.mark.parametrize(
    ("name", "kind", "numbers"),
    [("agp", AGPPruner, [1, 2, 3]), ("lottery_ticket", LotteryTicketPruner, [0, 1, 2])],
)
def test_epochs_are_counted_as_the_pruner_counts(name, kind, numbers, tmp_path, monkeypatch):
    """A schedule moves before an epoch; tickets are drawn after the weights were trained."""
    seen, follow = [], kind.update_epoch

    def listen(self, epoch):
        seen.append(epoch)
        follow(self, epoch)

    monkeypatch.setattr(kind, "update_epoch", listen)
    run(recipe(tmp_path / "project", name), tmp_path / "run", progress=False)
    assert seen == numbers
