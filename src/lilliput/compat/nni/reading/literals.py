"""Config lists that are written out in a program: their source, and which keys run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lilliput.compat.nni.config.dialects import Translation, translate
from lilliput.compat.nni.imports.names import find_name
from lilliput.compat.nni.reading.judging import UNCHANGED, Verdict
from lilliput.compat.nni.reading.uses import RulesUse, split
from lilliput.errors import Problem, nearest


class Expression(str):
    """The source of a value that is only known at run time, such as ``args.sparsity``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Rule:
    """One rule of a list in a program: its keys with their lines, and its values as far as known."""

    node: ast.Dict
    lines: dict[str, int]
    values: dict[str, Any]

    @property
    def is_complete(self) -> bool:
        """Whether all its keys are written out: none is computed, or unpacked from elsewhere."""
        return len(self.lines) == len(self.node.keys)


def read_rule(node: ast.Dict) -> Rule:
    """Return a dict of the source as a rule."""
    pairs = [
        (key, value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    lines = {str(key.value): key.lineno for key, _ in pairs}
    return Rule(node, lines, {str(key.value): value_of(value) for key, value in pairs})


def value_of(node: ast.expr) -> Any:
    """Return the value of a literal, with expressions for parts that are not literals.

    Examples
    --------
    >>> value_of(ast.parse("['conv1', prefix + 'conv2']", mode="eval").body)
    ['conv1', prefix + 'conv2']
    """
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value_of(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return dict(zip(keys, map(value_of, node.values), strict=True))
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Expression(ast.unparse(node))


def judge_rules(use: RulesUse) -> Iterator[Verdict]:
    """Return, for each key of a config list, whether and how its classes read it."""
    known = _known_keys(use.paths)
    rules = [read_rule(item) for item in use.node.elts if isinstance(item, ast.Dict)]
    faults = own_faults(use.paths, rules)
    for index, rule in enumerate(rules):
        if faults is None:
            yield from _judge(rule, index, translate([rule.values], first=index), known)
        else:
            yield from _judge_own(rule, index, faults)


def own_faults(paths: tuple[str, ...], rules: list[Rule]) -> list[Problem] | None:
    """Return the problems of rules that their class reads in its own way, or None for others."""
    values = [{key: _assumed(key, value) for key, value in rule.values.items()} for rule in rules]
    readers = [getattr(find_name(*split(path)), "faults_of", None) for path in paths]
    found = [reader(values) for reader in readers if reader is not None]
    if all(faults is None for faults in found):
        return None
    return [fault for faults in found for fault in faults or ()]


def _assumed(key: str, value: Any) -> Any:
    """Return a number for one that is only known at run time."""
    return 0.5 if isinstance(value, Expression) and "spars" in key else value


def _judge_own(rule: Rule, index: int, faults: list[Problem]) -> Iterator[Verdict]:
    for key, line in rule.lines.items():
        name = f"rule {index} → {key}"
        fault = next((x for x in faults if x.path.startswith(name)), None)
        if fault is None or isinstance(rule.values[key], Expression):
            yield Verdict(line, name, UNCHANGED)
        else:
            yield Verdict(line, name, f"not here: {fault.message}", runs=False)


def _judge(rule: Rule, index: int, translation: Translation, known: set[str]) -> Iterator[Verdict]:
    made = [one for one in translation.rules if isinstance(one, dict)]
    for key, line in rule.lines.items():
        name, place = f"rule {index} → {key}", f"rule {index} → {key}"
        fault = next((x for x in translation.problems if x.path.startswith(place)), None)
        note = next((n for n in translation.notes if n.startswith(f"rule {index}: {key!r}")), "")
        if fault is not None:
            if not isinstance(rule.values[key], Expression):
                yield Verdict(line, name, f"not here: {fault.message}", runs=False)
        elif note:
            text = note.partition(" reads as ")[2] or note.partition(": ")[2]
            yield Verdict(line, name, f"runs, spelled today {text}")
        elif any(key in one for one in made) and key not in known:
            text = f"not here: the class does not know this key.{nearest(key, known)}"
            yield Verdict(line, name, text, runs=False)
        elif any(key in one for one in made):
            yield Verdict(line, name, UNCHANGED)
        else:  # read together with another key
            text = "; ".join(n.partition(": ")[2] for n in translation.notes)
            yield Verdict(line, name, f"runs, spelled today as rules without it: {text}")


def _known_keys(paths: tuple[str, ...]) -> set[str]:
    """Return the keys that all of some classes read; those of any algorithm if none is known."""
    from lilliput.core.binding import keys_in_use

    found = [find_name(*split(path)) for path in paths]
    rules = [cls.rule for cls in found if hasattr(cls, "rule")]
    if not rules:
        return {*keys_in_use()}
    return set.intersection(*({*rule.model_fields} for rule in rules))
