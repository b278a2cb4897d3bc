"""The dry run."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from lilliput.errors import ConfigError
from lilliput.recipes import load_recipe, plan

SMALL = Path(__file__).parent / "project" / "small.yaml"


def test_a_plan_names_layers_time_and_memory():
    found = plan(SMALL)
    assert found.steps[2].rules == {0: ["0", "4"]}
    assert found.seconds > 0 and found.memory > 1e6
    text = str(found)
    assert "3. prune (agp), 2 epochs, about" in text
    assert "rule 0: 2 layers: 0, 4" in text
    assert found.to_dict()["steps"][0]["title"] == "finetune"


def test_functions_that_are_missing_are_all_named():
    recipe = load_recipe(SMALL)
    changed = recipe.model_copy(update={"data": "recipe_toy:batch", "evaluate": "recipe_toy:acc"})
    with pytest.raises(ConfigError) as error:
        plan(changed)
    assert "data: module 'recipe_toy' has no 'batch'. Did you mean 'batches'?" in str(error.value)
    assert "evaluate: module 'recipe_toy' has no 'acc'." in str(error.value)


def test_training_without_a_loss_is_refused():
    recipe = load_recipe(SMALL)
    with pytest.raises(ConfigError, match="neither 'loss' nor 'train'"):
        plan(recipe.model_copy(update={"loss": None}))
