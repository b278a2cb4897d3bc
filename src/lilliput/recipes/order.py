"""Problems between the steps of a recipe: wrong order, and missing requirements."""

from __future__ import annotations

from typing import Any

from lilliput.recipes.faults import Fault
from lilliput.recipes.goals import GOALS, about_found
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import FOUND, epochs_of, is_reference, teacher_of, uses_labels


def check_order(recipe: Recipe) -> list[Fault]:
    """Return steps that come too early, files written twice, and schedules longer than training."""
    faults: list[Fault] = []
    has_zeros = True  # initial zeros of the model, until it is trained without masks
    is_pruned = not is_reference(recipe.model)  # an earlier run may have pruned it
    is_quantized = False
    search = None  # the last search
    is_masked = False
    since = ""  # what changed the model so that it no longer matches the original
    files: set[str] = set()
    steps: list[Any] = list(recipe.steps)
    for index, step in enumerate(steps):
        found = ""
        if step.verb == "speedup" and is_quantized:
            found = "comes after quantize; cut channels out first, and quantize the smaller model."
        elif step.verb == "speedup" and not has_zeros:
            found = "comes after training without a prune step, so there is nothing to cut."
        elif step.verb == "export" and step.file in files:
            found = f"writes {step.file!r}, which an earlier step writes too; choose another name."
        elif step.verb in ("prune", "recover") and is_quantized:
            found = f"comes after quantize; {step.verb} first."
        elif step.verb == "recover" and step.recover != "recalibrate" and since:
            found = f"comes after {since}; it refits a pruned model to the recipe's initial model."
        elif step.verb == "factorize" and (is_masked or is_quantized):
            way = "" if is_quantized else ", or cut the pruned channels out before"
            found = f"comes after {'quantize' if is_quantized else 'prune'}; factorize first{way}."
        elif step.verb in GOALS and (is_masked or is_quantized):
            found = "comes after prune or quantize; search first, or cut the pruned channels out before."
        elif step.verb == "auto" and any(x.verb != "analyze" for x in steps[index + 1 :]):
            found = "writes the final file of a run; it has to be the last step."
        elif step.verb == "auto" and any(name.startswith("model.") for name in files):
            found = (
                "writes a file 'model' of the target, and so does an earlier step; rename that one."
            )
        elif getattr(step, "config", None) == FOUND:
            found = about_found(step, search)
        if found:
            faults.append(Fault(("steps", index, step.verb), found))
        faults += _check_data(recipe, index, step)
        if step.verb == "prune":
            is_pruned = has_zeros = True
        elif step.verb in ("finetune", "distill") and not is_pruned:
            has_zeros = False
        if step.verb in ("speedup", "factorize") or epochs_of(step):
            since = "training" if epochs_of(step) else step.verb
        is_masked = step.verb == "prune" or (is_masked and step.verb != "speedup")
        search = step if step.verb == "search" else search
        is_quantized |= step.verb == "quantize"
        files |= {step.file} if step.verb == "export" else set()
    return faults


def _check_data(recipe: Recipe, index: int, step: Any) -> list[Fault]:
    faults = []
    if step.verb in ("analyze", *GOALS) and recipe.evaluate is None:
        text = "needs 'evaluate' at the top of the recipe, to measure how much a layer can lose."
        faults.append(Fault(("steps", index, step.verb), text))
    if teacher_of(step) is not None and uses_labels(step) and recipe.train is not None:
        text = "joins the loss of the recipe, which has its own 'train'; use 'loss' instead."
        faults.append(Fault(("steps", index, step.verb), f"a teacher {text}"))
    needs_data = step.verb in ("quantize", "finetune", "distill", "recover", *GOALS) or (
        step.verb == "prune" and step.epochs
    )
    if needs_data and recipe.data is None:
        text = f"needs 'data' at the top of the recipe: {Recipe.model_fields['data'].description}"
        faults.append(Fault(("steps", index, step.verb), text))
    if step.verb == "prune":
        faults += _check_schedule(index, step)
    return faults


def _check_schedule(index: int, step: Any) -> list[Fault]:
    """Return rules whose schedule would not finish in this step."""
    faults = []
    for number, rule in enumerate(step.config if isinstance(step.config, list) else ()):
        end = rule.get("end_epoch") if isinstance(rule, dict) else None
        if isinstance(end, int) and end > step.epochs:
            text = (
                f"is {end}, but the step trains {step.epochs} epochs, so that final_sparsity would not "
                f"be reached; set epochs to {end} or more, or omit end_epoch."
            )
            faults.append(Fault(("steps", index, "config", number, "end_epoch"), text))
    return faults
