"""From the user's config list (dicts or a file) to typed rules, or all errors at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from lilliput.config.files import read_rules
from lilliput.config.spec import Rule
from lilliput.errors import MOST_PROBLEMS, ConfigError, Problem, nearest
from lilliput.printing import printable, shown

ConfigList = Sequence[Mapping[str, Any] | Rule] | Mapping[str, Any] | Rule | str | os.PathLike[str]

log = logging.getLogger("lilliput")

MAX_RULES = 10_000  # one rule for each layer of the largest models


@dataclass(frozen=True)
class ParsedRules:
    """Typed rules, the index of the user's rule for each of them, and all problems."""

    rules: list[Rule]
    origins: list[int]
    problems: list[Problem]


def parse_rules(
    config_list: ConfigList,
    rule: type[Rule] = Rule,
    algorithm: str = "",
    sections: Sequence[str] = (),
    framework: str = "torch",
    users_of_key: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> ParsedRules:
    """Turn a config list into typed rules and collect its problems.

    Parameters
    ----------
    config_list : list of dict, dict, or path of a YAML or JSON file
        The user's rules; those in the keys of an older config language are translated.
    rule : type of Rule
        The keys of the algorithm.
    algorithm : str
        Name for messages.
    sections : sequence of str
        Names of the algorithm that may occur in a file.
    framework : str
        ``"torch"`` or ``"keras"``: decides which prefixed sections of a file apply.
    users_of_key : callable
        Returns, for keys that this algorithm does not have, the algorithms that do. Called for hints only.

    Examples
    --------
    >>> parse_rules({"op_types": "Linear"}).rules[0].op_types
    ['Linear']
    >>> print(parse_rules([{"op_type": ["Linear"]}]).problems[0])
    rule 0 → op_type: unknown key. Did you mean 'op_types'?
    """
    raw = _as_rule_list(config_list, rule, sections, framework)
    if isinstance(raw, Problem):
        return ParsedRules([], [], [raw])
    rules: list[Rule] = []
    origins: list[int] = []
    problems: list[Problem] = []
    for origin, entry in enumerate(raw):
        if len(problems) > MOST_PROBLEMS:
            break
        place = f"rule {origin}"
        if not isinstance(entry, Mapping):
            problems.append(Problem(place, f"received {shown(entry)}, expected a dict of keys."))
            continue
        try:
            entry = dict(entry)
        except Exception as error:  # a custom mapping, which runs the user's code
            text = f"its keys cannot be read ({type(error).__name__}); use a plain dict."
            problems.append(Problem(place, text))
            continue
        for spelled in _in_todays_keys(entry, origin, rule, problems):
            try:
                rules.append(rule.model_validate(dict(spelled)))
            except ValidationError as error:
                problems.extend(_explain(error, place, rule, algorithm, users_of_key))
                rules.extend(_selection_only(spelled))
            origins.extend([origin] * (len(rules) - len(origins)))
    return ParsedRules(rules, origins, list(dict.fromkeys(problems))[: MOST_PROBLEMS + 1])


def _in_todays_keys(
    entry: Mapping[str, Any], origin: int, rule: type[Rule], problems: list[Problem]
) -> list[Mapping[str, Any]]:
    """Return a rule unchanged if the schema accepts it, otherwise translated from older spellings."""
    if _is_known(entry, rule):
        return [entry]
    from lilliput.compat.nni.config.dialects import translate  # needed by older config lists only

    translation = translate([entry], first=origin)
    for note in translation.notes:
        log.warning("%s", note)
    problems += translation.problems
    return list(translation.rules)


def _is_known(entry: Mapping[str, Any], rule: type[Rule]) -> bool:
    try:
        rule.model_validate(dict(entry))
    except ValidationError:
        return False
    # A rule may permit keys besides its own, but an older key must not be treated as one of those.
    return all(key in rule.model_fields for key in entry)


def schema(rule: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a config list made of such rules, for editors and validators."""
    items = rule.model_json_schema()
    definitions = items.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"config list of {rule.__name__}",
        "type": "array",
        "items": items,
        **({"$defs": definitions} if definitions else {}),
    }


def _selection_only(entry: Mapping[str, Any]) -> list[Rule]:
    """Return the part of a faulty rule that selects layers, so that its names are checked as well."""
    keys = {key: entry[key] for key in Rule.model_fields if key in entry}
    try:
        return [Rule.model_validate(keys)]
    except ValidationError:
        return []


def _as_rule_list(
    config_list: Any, rule: type[Rule], sections: Sequence[str], framework: str
) -> list[Mapping[str, Any]] | Problem:
    if isinstance(config_list, (str, Path, os.PathLike)):
        config_list = read_rules(config_list, sections, framework)
    if isinstance(config_list, (Mapping, Rule)):
        config_list = [config_list]
    if not isinstance(config_list, Sequence) or isinstance(config_list, (bytes, bytearray)):
        received, example = shown(config_list), _example(rule)
        return Problem("", f"received {received}, expected a list of rules such as {example}.")
    if not config_list:
        example = _example(rule)
        return Problem("", f"the config list is empty; write at least one rule, such as {example}.")
    if len(config_list) > MAX_RULES:
        return Problem(
            "",
            f"received {len(config_list):,} rules, expected at most {MAX_RULES:,}; select several layers "
            "by one rule with patterns such as 'encoder.*'.",
        )
    return [
        entry.model_dump(exclude_unset=True) if isinstance(entry, Rule) else entry
        for entry in config_list
    ]


# In the examples of messages: the first key that an algorithm has.
_EXAMPLES = {"sparsity": 0.8, "rank": 8, "quant_bits": 8}


def _example(rule: type[Rule]) -> list[dict[str, Any]]:
    """Return a config list that an algorithm accepts."""
    key = next((key for key in _EXAMPLES if key in rule.model_fields), None)
    return [{"op_types": ["default"]} | ({} if key is None else {key: _EXAMPLES[key]})]


def _explain(
    error: ValidationError,
    place: str,
    rule: type[Rule],
    algorithm: str,
    users_of_key: Callable[[], Mapping[str, Sequence[str]]],
) -> Iterable[Problem]:
    """Rephrase each pydantic error; branches of one union become one message."""
    by_key: dict[str, list[str]] = {}
    received: dict[str, Any] = {}
    for fault in islice(error.errors(include_url=False), MOST_PROBLEMS + 1):
        key = str(fault["loc"][0]) if fault["loc"] else ""
        if fault["type"] == "extra_forbidden":
            hint = nearest(key, rule.model_fields)
            users = users_of_key().get(key)
            if users:
                hint = f" {algorithm or 'This algorithm'} does not use it; {_join(users)} does."
            yield Problem(f"{place} → {printable(key)}", f"unknown key.{hint}")
            continue
        by_key.setdefault(key, []).append(_sentence(fault))
        received[key] = fault["input"]
    for key, messages in by_key.items():
        path = f"{place} → {key}" if key else place
        value = f" Received: {shown(received[key])}." if key else ""
        yield Problem(path, f"{' Or: '.join(dict.fromkeys(messages))}{value}")


def _sentence(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    text = text if text.endswith((".", "?")) else f"{text}."
    return text[0].lower() + text[1:]


def _join(names: Sequence[str]) -> str:
    return " or ".join(names)


__all__ = ["ConfigError", "ConfigList", "ParsedRules", "parse_rules", "schema"]
