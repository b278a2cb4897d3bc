"""Validate the steps of a recipe with the algorithms they name, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lilliput.config.files import read_rules
from lilliput.config.parse import parse_rules
from lilliput.core.binding import keys_in_use, names_of
from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError, LilliputError, Problem, nearest
from lilliput.recipes.arguments import NAMING, OURS, algorithm_of, options_of
from lilliput.recipes.faults import Fault
from lilliput.recipes.goals import GOALS, check_goal
from lilliput.recipes.order import check_order
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import FOUND, verb_of

_RULE = re.compile(r"rule (\d+)(?: → (.*))?")


def check_steps(raw: Any, folder: Path, recipe: Recipe | None) -> tuple[list[Any], list[Fault]]:
    """Return the steps with their config lists read, and all faults.

    Parameters
    ----------
    raw : object
        The steps as written in the file, valid or not.
    folder : pathlib.Path
        The folder in which files named by steps are looked up.
    recipe : Recipe or None
        The parsed recipe, if its form is valid.
    """
    faults: list[Fault] = []
    steps: list[Any] = []
    for index, entry in enumerate(raw if isinstance(raw, list) else ()):
        found = _Step(index, entry, folder) if isinstance(entry, Mapping) else None
        if found is not None:
            faults += found.check()
        if recipe is not None:
            step = recipe.steps[index]
            has_rules = found is not None and found.rules is not None
            steps.append(step.model_copy(update={"config": found.rules}) if has_rules else step)  # type: ignore[union-attr]
    if recipe is not None and not faults:
        faults = check_order(recipe.model_copy(update={"steps": steps}))
    return steps, faults


class _Step:
    """One step as written in the file."""

    def __init__(self, index: int, entry: Mapping[str, Any], folder: Path) -> None:
        self.index, self.entry, self.folder = index, entry, folder
        self.verb = verb_of(entry)
        self.rules: list[Any] | None = None

    def check(self) -> list[Fault]:
        """Return the problems of the algorithm, its config list or its options."""
        if self.verb in GOALS:
            faults = [self._fault(text, key) for key, text in check_goal(self.entry, self.verb)]
            return faults + self._read_choices()
        if self.verb == "distill":
            return self._check_config(import_module("lilliput.distillation.distiller").Distiller)
        if self.verb not in NAMING:
            return []
        name = self.entry[self.verb]
        if not isinstance(name, str):
            return []
        try:
            cls = algorithm_of(self.verb, name)
        except ConfigError as error:
            return [self._fault(str(error), self.verb)]
        faults = self._check_config(cls)
        if not faults and self.verb in ("prune", "quantize"):
            faults = self._check_options(cls)
        return faults

    def _check_config(self, cls: Any) -> list[Fault]:
        given = self.entry.get("config")
        if given is None or (given == FOUND and self.verb in ("prune", "quantize")):
            return []
        where = ""
        if isinstance(given, str):
            where = f"{given}: "
            try:
                given = read_rules(self.folder / given, names_of(cls))
            except ConfigError as error:
                return [self._fault(str(error), "config")]
        rules = [given] if isinstance(given, Mapping) else given
        if self.verb == "prune" and isinstance(rules, list):
            rules = [self._with_schedule(rule, cls) for rule in rules]
        self.rules = rules if isinstance(rules, list) else None
        if self.verb == "analyze" or cls.validate_config is not Compressor.validate_config:
            return []
        problems = parse_rules(rules, cls.rule, cls.__name__, users_of_key=keys_in_use).problems
        return [self._from_rule(problem, where) for problem in problems]

    def _read_choices(self) -> list[Fault]:
        """Read rules with choices from their file; they are validated with a model later."""
        given = self.entry.get("config")
        if isinstance(given, str):
            try:
                given = read_rules(self.folder / given, ())
            except ConfigError as error:
                return [self._fault(str(error), "config")]
        self.rules = [given] if isinstance(given, Mapping) else given
        return []

    def _with_schedule(self, rule: Any, cls: Any) -> Any:
        """Make a schedule end with the step, if the rule does not set its end."""
        epochs = self.entry.get("epochs", 0)
        is_scheduled = "end_epoch" in cls.rule.model_fields and isinstance(rule, Mapping)
        if not is_scheduled or "end_epoch" in rule or rule.get("exclude"):
            return rule
        return {**rule, "end_epoch": max(epochs, 1)} if isinstance(epochs, int) else rule

    def _from_rule(self, problem: Problem, where: str) -> Fault:
        match = _RULE.fullmatch(problem.path)
        if match is None:
            return self._fault(f"{where}{problem}", "config")
        keys = [int(match[1]), *([match[2]] if match[2] else [])]
        return self._fault(f"{where}{problem.message}", "config", *keys)

    def _check_options(self, cls: Any) -> list[Fault]:
        options = self.entry.get("options") or {}
        if not isinstance(options, Mapping):
            return []
        known = options_of(cls)
        faults = [
            self._fault(_about_option(key, known, cls), "options", str(key))
            for key in options
            if key not in known
        ]
        if faults:
            return faults
        try:
            cls(None, self.rules, **options)
        except LilliputError as error:
            return [self._fault(str(error), "options" if options else str(self.verb))]
        except (TypeError, ValueError) as error:
            return [
                self._fault(f"{cls.__name__} does not accept these options: {error}.", "options")
            ]
        return []

    def _fault(self, message: str, *keys: str | int) -> Fault:
        return Fault(("steps", self.index, *keys), message)


def _about_option(key: Any, known: list[str], cls: Any) -> str:
    if key in OURS:
        return "is set by the recipe itself; remove it from the options."
    listed = f"It takes: {', '.join(known)}." if known else "It takes none."
    return f"{cls.__name__} has no such option.{nearest(key, known)} {listed}"
