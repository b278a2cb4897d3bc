"""Recipes: from a trained model to files, described by a YAML file, with checkpoints in between."""

from lilliput.recipes.load import load_recipe
from lilliput.recipes.opening import LoadedRun, load_run
from lilliput.recipes.planning import Plan, plan
from lilliput.recipes.references import resolve
from lilliput.recipes.run import RunResult, run, stored_result
from lilliput.recipes.show import Event
from lilliput.recipes.spec import Recipe

__all__ = [
    "Event",
    "LoadedRun",
    "Plan",
    "Recipe",
    "RunResult",
    "load_recipe",
    "load_run",
    "plan",
    "resolve",
    "run",
    "stored_result",
]
