"""Packages that the steps of a recipe need, checked before any work is done."""

from __future__ import annotations

from lilliput.errors import MissingExtraError
from lilliput.export.targets.table import TARGETS, target_named
from lilliput.extras import is_installed
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import ExportStep, GoalStep, SearchStep


def check_installed(recipe: Recipe, framework: str) -> None:
    """Raise if steps need packages that are not installed; all of them at once.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    framework : str
        ``'torch'`` or ``'keras'``: that of the model.
    """
    problems = []
    for number, step in enumerate(recipe.steps, 1):
        if isinstance(step, GoalStep):
            problems += [f"step {number}: {x}" for x in _missing_for(step, framework)]
        if not isinstance(step, ExportStep):
            continue
        writer = target_named(step.export).find_writer(framework)
        # Files are executed as well as written, because the receipt measures them.
        missing = [name for name in writer.modules if not is_installed(name)] if writer else []
        if writer and missing:
            problems.append(
                f"step {number}: export: {step.export} needs {', '.join(missing)}: "
                f"pip install 'lilliput[{writer.extra}]'"
            )
    if problems:
        raise MissingExtraError("\n".join(problems))


def _missing_for(step: GoalStep, framework: str) -> list[str]:
    """Return what a search lacks: its solver, its sampler, and the packages for its files."""
    needed = ["scipy"]
    if isinstance(step, SearchStep) and step.search == "bayes":
        needed.append("optuna")
    missing = [name for name in needed if not is_installed(name)]
    verb = "search" if isinstance(step, SearchStep) else "auto"
    found = (
        [f"{verb}: needs {', '.join(missing)}: pip install 'lilliput[search]'"] if missing else []
    )
    known = {target.runtime: target for target in TARGETS.values()} | dict(TARGETS)
    writer = known[step.target].find_writer(framework)
    missing = [name for name in writer.modules if not is_installed(name)] if writer else []
    if writer and missing:
        needs = f"{verb}: {step.target} needs {', '.join(missing)}"
        found.append(f"{needs}: pip install 'lilliput[{writer.extra}]'")
    return found
