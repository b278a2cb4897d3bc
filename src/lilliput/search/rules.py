"""Rules in which a value may be a choice: read them, and report all problems at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lilliput.config.files import read_rules
from lilliput.config.parse import parse_rules
from lilliput.config.select import select
from lilliput.config.spec import Rule
from lilliput.errors import ConfigError, Problem, nearest
from lilliput.frameworks import backend_of
from lilliput.printing import printable, shown
from lilliput.pruning.sensitivity_probe import one_shot
from lilliput.registry import quantizers

SELECTING = ("op_types", "op_names", "exclude")
CHOSEN = ("sparsity", "quant_bits")
_EXAMPLE = "{'op_types': ['default'], 'sparsity': {'choose': [0, 0.25, 0.5]}}"


@dataclass(frozen=True)
class ChoiceRule:
    """One rule: its layers, its alternatives, and its fixed settings.

    Parameters
    ----------
    selecting : dict
        ``op_types``, ``op_names``, ``exclude``.
    choices : dict
        The alternatives of ``sparsity`` and ``quant_bits``; a single one if the rule has a value.
    others : dict
        For each of these two, the other keys that belong to it.
    """

    selecting: dict[str, Any]
    choices: dict[str, list[Any]]
    others: dict[str, dict[str, Any]]

    def settings(self, key: str) -> dict[str, Any]:
        """Return the keys that belong to a choice."""
        return dict(self.others[key])

    def first(self, key: str) -> dict[str, Any]:
        """Return the rule for an algorithm, with the most aggressive alternative; or one that excludes."""
        real = [x for x in self.choices.get(key, ()) if x is not None]
        if not real:
            return {**self.selecting, "exclude": True}
        return {**self.selecting, **self.others[key], key: real[-1]}


def read_choices(config_list: Any, model: Any, pruner: str, quantizer: str) -> list[ChoiceRule]:
    """Return the rules of a search, or raise with all of their problems."""
    backend = backend_of(model)
    known = {"sparsity": one_shot(pruner).rule, "quant_bits": quantizers.get(quantizer).rule}
    raw = _as_list(config_list, backend.name)
    problems: list[Problem] = []
    rules = [_read(entry, f"rule {i}", known, problems) for i, entry in enumerate(raw)]
    found = [rule for rule in rules if rule is not None]
    selecting = parse_rules([rule.selecting for rule in found]) if found else None
    if selecting is not None and not selecting.problems and len(found) == len(raw):
        layers, types = backend.layers(model), backend.default_types
        matched = select(layers, selecting.rules, types, is_known_type=backend.is_known_type)
        problems += matched.problems
    elif selecting is not None:
        problems += selecting.problems
    if not problems and not any(len(x) > 1 for rule in found for x in rule.choices.values()):
        text = (
            f"no value is a choice, so there is nothing to search; use a rule such as {_EXAMPLE}."
        )
        problems.append(Problem("", text))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), title="Search")
    return found


def _as_list(config_list: Any, framework: str) -> list[Any]:
    if isinstance(config_list, (str, os.PathLike)):
        config_list = read_rules(config_list, (), framework)
    if isinstance(config_list, Mapping):
        config_list = [config_list]
    if not isinstance(config_list, Sequence) or not config_list:
        raise ConfigError(
            f"Search: received {shown(config_list)}, expected a list of rules such as [{_EXAMPLE}]."
        )
    return list(config_list)


def _read(
    entry: Any, place: str, known: Mapping[str, type[Rule]], problems: list[Problem]
) -> ChoiceRule | None:
    if not isinstance(entry, Mapping):
        problems.append(Problem(place, f"received {shown(entry)}, expected a dict of keys."))
        return None
    entry = dict(entry)
    selecting = {key: entry.pop(key) for key in SELECTING if key in entry}
    given = {key: entry.pop(key) for key in CHOSEN if key in entry}
    choices = {k: _choices(x, f"{place} → {k}", problems) for k, x in given.items()}
    others: dict[str, dict[str, Any]] = {key: {} for key in CHOSEN}
    for key, value in entry.items():
        if isinstance(value, Mapping) and "choose" in value:
            text = f"only {' and '.join(CHOSEN)} can be a choice; use a single value."
            problems.append(Problem(f"{place} → {printable(key)}", text))
            continue
        owner = next((x for x in reversed(CHOSEN) if key in known[x].model_fields), None)
        if owner is None:
            names = {x for rule in known.values() for x in rule.model_fields}
            text = f"unknown key.{nearest(key, names)}"
            problems.append(Problem(f"{place} → {printable(key)}", text))
        elif owner not in choices:
            text = f"it requires {owner!r}, which the rule does not have."
            problems.append(Problem(f"{place} → {key}", text))
        else:
            others[owner][key] = value
    if not choices and not selecting.get("exclude"):
        text = "it requests nothing; expected 'sparsity', 'quant_bits' or 'exclude': True."
        problems.append(Problem(place, text))
    for key, values in choices.items():
        for value in values:
            if value is not None or key != "quant_bits":
                rule = {**selecting, **others[key], key: value}
                problems += _faults(rule, known[key], place, value if len(values) > 1 else None)
    return ChoiceRule(selecting, choices, others)


def _choices(value: Any, place: str, problems: list[Problem]) -> list[Any]:
    """Return the alternatives of a value; a plain value is the only one."""
    if not (isinstance(value, Mapping) and "choose" in value):
        return [value]
    listed = value["choose"]
    if len(value) > 1 or not isinstance(listed, (list, tuple)) or not listed:
        text = f"received {shown(value)}, expected {{'choose': [...]}} with at least one value."
        problems.append(Problem(place, text))
        return []
    if any(x in listed[:i] for i, x in enumerate(listed)):
        problems.append(Problem(place, f"received {shown(listed)}, which names a value twice."))
    return list(listed)


def _faults(rule: Any, known: type[Rule], place: str, value: Any) -> list[Problem]:
    """Return the problems that an algorithm's own rule reports for one alternative."""
    found = []
    for problem in parse_rules([rule], known).problems:
        path = problem.path.replace("rule 0", place, 1)
        mark = "" if value is None else f" (choice {shown(value)})"
        found.append(Problem(f"{path}{mark}", problem.message, problem.is_unmatched))
    return found
