"""Match a compressor's config list with a model: parse, select layers, and report all problems."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from lilliput.config.parse import ParsedRules, parse_rules
from lilliput.config.select import Selection, select
from lilliput.config.spec import Rule
from lilliput.errors import ConfigError, Problem, UnsupportedModelError
from lilliput.frameworks.base import Backend
from lilliput.registry import REGISTRIES

log = logging.getLogger("lilliput")


def select_layers(compressor: Any, backend: Backend) -> Selection:
    """Return which rule selects which layer of the bound model, or raise with all problems."""
    cls, model = type(compressor), compressor.bound_model
    if backend.name not in cls.backends:
        raise UnsupportedModelError(
            f"{cls.__name__} works on {' and '.join(cls.backends)} models, "
            f"received a {backend.name} model."
        )
    backend.reshard(model)
    compressor.validate_config(model, compressor.config_list)
    parsed = _parse(compressor, backend)
    layers = [layer for layer in compressor._find_layers() if compressor._can_wrap(layer)]
    own = compressor.default_types
    defaults = backend.default_types if own is None else own
    selection = select(layers, parsed.rules, defaults, parsed.origins, backend.is_known_type)
    if not cls._strict_names:
        selection = _without_unmatched(selection, cls.__name__)
    problems = list(parsed.problems)
    if parsed.rules:
        problems += selection.problems
    if not parsed.problems:
        problems += compressor._find_problems(selection)
    if not problems:
        selection = compressor._refine(selection)
        problems += selection.problems
    if problems:
        raise ConfigError(sorted(problems, key=_place), title=cls.__name__)
    return selection


def names_of(cls: type) -> list[str]:
    """Return the names of an algorithm that may occur in a file."""
    known = getattr(cls, "adapts", None) or cls
    return [cls.__name__, *(name for each in REGISTRIES for name in each.names_of(known))]


def _without_unmatched(selection: Selection, title: str) -> Selection:
    """Log the names that match nothing, and return the selection with the other problems."""
    for problem in selection.problems:
        if problem.is_unmatched:
            log.warning("%s: %s", title, problem)
    others = tuple(problem for problem in selection.problems if not problem.is_unmatched)
    return replace(selection, problems=others)


def _parse(compressor: Any, backend: Backend) -> ParsedRules:
    cls = type(compressor)
    rule: type[Rule] = cls.rule
    if compressor._checks_config:
        # The author validates the config, so unknown keys are allowed.
        rule = type(rule.__name__, (rule,), {"model_config": {"extra": "allow"}})
    config_list = compressor.config_list
    if config_list is None:
        config_list = [{"op_types": ["default"]}]
    return parse_rules(config_list, rule, cls.__name__, names_of(cls), backend.name, keys_in_use)


def keys_in_use() -> dict[str, Sequence[str]]:
    """Return, for every config key, the registered algorithms that use it."""
    users: dict[str, list[str]] = {}
    for cls in chain.from_iterable(REGISTRIES):
        for key in cls.rule.model_fields:
            users.setdefault(key, []).append(cls.__name__)
    return dict(users)


def _place(problem: Problem) -> int:
    """Sort problems by the number of their rule, those of the whole list first."""
    number = problem.path.removeprefix("rule ").partition(" ")[0]
    return int(number) if number.isdigit() else -1
