"""Read a recipe and validate it as far as possible without the model, reporting all faults at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lilliput.config.plain_text import BadFileError, parse_text, read_bytes
from lilliput.errors import ConfigError, Problem, nearest
from lilliput.recipes.check import check_steps
from lilliput.recipes.faults import Fault, find_lines, line_of
from lilliput.recipes.functions import about_model, find_run
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import VERBS, is_reference

_SHOWN = 15  # problems that fit on a screen


def load_recipe(source: str | os.PathLike[str] | Mapping[str, Any] | Recipe) -> Recipe:
    """Read a recipe from a YAML or JSON file, or a dict.

    Config lists in separate files are read as well, and become part of the recipe.

    Parameters
    ----------
    source : path, dict or Recipe
        The recipe. It can name files next to it, and modules.

    Raises
    ------
    ConfigError
        With all problems, each with its line and the fix.

    Examples
    --------
    >>> load_recipe({"lilliput": 1, "model": "digits:build", "steps": [{"speed": {}}]})
    Traceback (most recent call last):
        ...
    lilliput.errors.ConfigError: recipe: 2 problems
      - step 1: has no verb; expected one of prune, factorize, recover, speedup, finetune, distill, \
quantize, export, analyze, search, auto. Did you mean 'speedup'?
      - data: is missing: module:function, () -> iterable of (inputs, targets).
    """
    if isinstance(source, Recipe):
        return source
    if isinstance(source, Mapping):
        return _checked(source, Path.cwd(), "", "recipe")
    path = Path(source)
    value, text = read_document(path)
    return _checked(value, path.resolve().parent, text, os.fspath(source))


def read_document(path: Path) -> tuple[Any, str]:
    """Return the plain values of a YAML or JSON file, and its text."""
    try:
        data = read_bytes(path)
        if not data.strip():
            raise ConfigError("is empty, expected a recipe.", title=os.fspath(path))
        return parse_text(data, path.suffix), data.decode("utf-8-sig")
    except BadFileError as error:
        raise ConfigError(str(error), title=os.fspath(path)) from error


def _checked(value: Any, folder: Path, text: str, title: str) -> Recipe:
    if not isinstance(value, Mapping):
        raise ConfigError(
            "expected keys such as lilliput, model, data and steps at the top, received "
            f"{type(value).__name__}; see the documentation of recipes.",
            title=title,
        )
    value = _without_null_steps(value)
    recipe, faults = _validate(value)
    faults += _find_missing(value, folder)
    steps, more = check_steps(value.get("steps"), folder, recipe)
    faults += more
    if faults or recipe is None:
        lines = find_lines(text) if text else {}
        raise ConfigError(_in_order(faults, lines), title=title)
    recipe = recipe.model_copy(update={"steps": steps})
    recipe._folder, recipe._text = folder, text
    return recipe


def _without_null_steps(value: Mapping[str, Any]) -> dict[str, Any]:
    """Omit keys without a value, which YAML reads as null, where that has no meaning."""
    return {key: held for key, held in value.items() if held is not None or key == "steps"}


def _validate(value: Mapping[str, Any]) -> tuple[Recipe | None, list[Fault]]:
    try:
        return Recipe.model_validate(value), []
    except ValidationError as error:
        return None, [_explain(fault) for fault in error.errors(include_url=False)]


def _find_missing(value: Mapping[str, Any], folder: Path) -> list[Fault]:
    """Return the problem of a missing earlier run, or of missing data."""
    model = value.get("model")
    if not isinstance(model, str):
        return []
    if not is_reference(model):  # an earlier run, which has stored its inputs
        is_there = find_run(model, folder) is not None
        return [] if is_there or not model.strip() else [Fault(("model",), about_model(model))]
    if value.get("data") is None and value.get("inputs") is None:
        return [Fault(("data",), f"is missing: {Recipe.model_fields['data'].description}")]
    return []


def _explain(fault: Any) -> Fault:
    """Rephrase one pydantic error."""
    place, fields = _place(fault["loc"])
    kind, received = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        return Fault(place, f"unknown key.{nearest(place[-1], fields)} Known: {', '.join(fields)}.")
    if kind == "missing":
        return Fault(place, f"is missing: {fields[str(place[-1])].description}")
    if kind == "verb":
        return Fault(place, _about_verbs(received))
    if kind == "int_parsing_size":
        return Fault(place, f"should be a valid integer of reasonable size. Received: {received}.")
    text = str(fault["msg"]).removeprefix("Value error, ")
    text = text if text.endswith((".", "?")) else f"{text}."
    shown = "" if isinstance(received, Mapping) else f" Received: {_short(received)}."
    return Fault(place, f"{text[0].lower()}{text[1:]}{shown}")


def _place(location: tuple[Any, ...]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return a location as in the file, and the known keys there."""
    if location[:1] != ("steps",) or len(location) < 3:
        return location, Recipe.model_fields
    cls: Any = VERBS[location[2]]
    place = (*location[:2], *location[3:])
    if len(place) == 4 and place[2] == cls.verb:  # inside of speedup: {} or finetune: {}
        inner = cls.model_fields[cls.verb].annotation
        return place, getattr(inner, "model_fields", cls.model_fields)
    return place, cls.model_fields


def _about_verbs(step: Any) -> str:
    known = ", ".join(VERBS)
    if not isinstance(step, Mapping):
        return f"expected a mapping with one of {known}. Received: {_short(step)}."
    found = [key for key in VERBS if key in step]
    if found:
        return f"has {len(found)} verbs ({', '.join(found)}); make each of them a separate step."
    hint = next(filter(None, (nearest(key, VERBS) for key in step)), "")
    return f"has no verb; expected one of {known}.{hint}"


def _in_order(faults: Iterable[Fault], lines: Mapping[Any, int]) -> list[Problem]:
    """Return all faults as problems, in the order of the file."""
    unique = {(fault.place, fault.message): fault for fault in faults}
    placed = [(line_of(fault.place, lines), fault) for fault in unique.values()]
    placed.sort(key=lambda pair: pair[0] or 0)
    problems = []
    for line, fault in placed[:_SHOWN]:
        where = f"line {line}, {fault.where}" if line and fault.where else fault.where
        problems.append(Problem(where, fault.message))
    if len(placed) > _SHOWN:
        rest = f"and {len(placed) - _SHOWN} more problems; fix these first."
        problems.append(Problem("", rest))
    return problems


def _short(value: object) -> str:
    text = f"{value!r}"
    return text if len(text) <= 80 else f"{text[:77]}..."
