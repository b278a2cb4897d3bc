"""Which rule takes which layer: the last rule that matches wins, as a whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from lilliput.config.layer import LayerInfo
from lilliput.config.spec import Rule
from lilliput.errors import Problem, nearest


@dataclass(frozen=True)
class Decision:
    """What happens to one layer, and which rule (by the user's numbering) said so."""

    layer: LayerInfo
    rule: int | None
    excluded: bool = False
    obstacle: str = ""  # why the algorithm has to leave a layer alone that a rule selects

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.obstacle:
            return f"left alone: {self.obstacle}"
        if self.rule is None:
            return "no rule matches"
        return f"excluded by rule {self.rule}" if self.excluded else f"rule {self.rule}"

    @property
    def is_chosen(self) -> bool:
        """Whether the layer is compressed."""
        return self.rule is not None and not self.excluded and not self.obstacle


@dataclass(frozen=True)
class Selection:
    """The outcome of matching a config list with a model's layers."""

    decisions: tuple[Decision, ...]
    problems: tuple[Problem, ...]

    @property
    def chosen(self) -> list[LayerInfo]:
        """The layers to compress, each with its ``config`` filled in."""
        return [d.layer for d in self.decisions if d.is_chosen]

    def __str__(self) -> str:
        """Print one line per layer: name, type, shape, which rule took it and what it asks."""
        rows = [("layer", "type", "weight", "decision", "asks for")]
        for decision in self.decisions:
            layer = decision.layer
            others = [path for owner in layer.owners for path in owner.paths][1:]
            shared = "".join(f" (= {path})" for path in others)
            asks = ", ".join(
                f"{key}={value}"
                for key, value in layer.config.items()
                if key not in ("op_types", "op_names") and decision.is_chosen
            )
            shape = "×".join(map(str, layer.shape)) or "-"
            rows.append((layer.name + shared, layer.type, shape, decision.why, asks))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
    return "  ".join([*padded, row[-1]]).rstrip()


def select(
    layers: Sequence[LayerInfo],
    rules: Sequence[Rule],
    default_types: Collection[str],
    origins: Sequence[int] | None = None,
    is_known_type: Callable[[str], bool] = lambda name: False,
) -> Selection:
    """Match rules with layers.

    Parameters
    ----------
    layers : sequence of LayerInfo
        Everything in the model that could be compressed.
    rules : sequence of Rule
        In the order the user wrote them.
    default_types : collection of str
        What ``'default'`` stands for.
    origins : sequence of int, optional
        The user's number of each rule, for messages.
    is_known_type : callable
        Whether a class name exists in the framework: such a type may be absent from the model.

    Returns
    -------
    Selection
        Decisions and, instead of exceptions, the list of problems, so that the caller can report
        them together with all others.
    """
    numbers = list(origins) if origins is not None else list(range(len(rules)))
    matched = [[_matches(rule, layer, default_types) for layer in layers] for rule in rules]
    problems = [
        problem
        for number, rule, hits in zip(numbers, rules, matched, strict=True)
        for problem in _find_problems(rule, f"rule {number}", layers, any(hits), is_known_type)
    ]
    decisions = []
    for column, layer in enumerate(layers):
        taker = next((i for i in reversed(range(len(rules))) if matched[i][column]), None)
        if taker is None:
            decisions.append(Decision(layer, None))
        else:
            rule = rules[taker]
            chosen = replace(layer, config=rule.settings())
            decisions.append(Decision(chosen, numbers[taker], rule.exclude))
    if not problems and not any(d.rule is not None and not d.excluded for d in decisions):
        problems.append(Problem("", f"no layer is left to compress. {_inventory(layers)}"))
    return Selection(tuple(decisions), tuple(problems))


def _matches(rule: Rule, layer: LayerInfo, default_types: Collection[str]) -> bool:
    types = rule.op_types or ["default"]
    if not rule.op_types and layer.names & set(rule.op_names or ()):
        types = []  # a layer that is named in full is meant, whatever its type
    expanded = [t for name in types for t in (default_types if name == "default" else [name])]
    return _passes(expanded, lambda name: name in layer.types) and _passes(
        rule.op_names or [], lambda pattern: any(_fits(pattern, name) for name in layer.names)
    )


def _passes(entries: Sequence[str], test: Callable[[str], bool]) -> bool:
    """Whether one positive entry holds (or there is none) and no negated one does."""
    positive = [entry for entry in entries if not entry.startswith("!")]
    negative = [entry[1:] for entry in entries if entry.startswith("!")]
    return (not positive or any(map(test, positive))) and not any(map(test, negative))


def _fits(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        compiled = _compile(pattern[3:])
        return compiled is not None and compiled.fullmatch(name) is not None
    return pattern == name or fnmatchcase(name, pattern)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _find_problems(
    rule: Rule,
    place: str,
    layers: Sequence[LayerInfo],
    has_hits: bool,
    is_known_type: Callable[[str], bool],
) -> list[Problem]:
    problems = []
    # A layer's own name first, then those of its bases and aliases.
    types = [layer.type for layer in layers]
    types += sorted({name for layer in layers for name in layer.types})
    present = dict.fromkeys(types)
    for entry in rule.op_types or []:
        name = entry.removeprefix("!")
        if name != "default" and name not in present and not is_known_type(name):
            hint = nearest(name, present)
            text = f"{name!r} matches no layer.{hint} {_inventory(layers)}"
            problems.append(Problem(f"{place} → op_types", text))
    paths = {name for layer in layers for name in layer.names}
    for entry in rule.op_names or []:
        pattern = entry.removeprefix("!")
        if pattern.startswith("re:") and _compile(pattern[3:]) is None:
            text = f"{pattern[3:]!r} is not a regular expression that Python can compile."
            problems.append(Problem(f"{place} → op_names", text))
        elif not any(_fits(pattern, path) for path in paths):
            problems.append(Problem(f"{place} → op_names", _no_such_name(pattern, paths)))
    if not problems and not has_hits and not rule.exclude:
        asked = {"op_types": rule.op_types, "op_names": rule.op_names}
        wanted = ", ".join(f"{key} {value}" for key, value in asked.items() if value)
        hint = " Patterns stay within the default types; give op_types for others."
        hint = hint if rule.op_names and not rule.op_types else ""
        text = f"{wanted or 'the default types'} matches no layer.{hint} {_inventory(layers)}"
        problems.append(Problem(place, text))
    return problems


def _no_such_name(pattern: str, paths: Collection[str]) -> str:
    inside = sorted(path for path in paths if path.startswith(f"{pattern}."))
    if inside:
        return f"{pattern!r} holds layers but is none itself: write '{pattern}.*'."
    few = ", ".join(repr(path) for path in sorted(paths)[:6])
    more = ", …" if len(paths) > 6 else ""
    return f"{pattern!r} matches no layer.{nearest(pattern, paths)} Names here: {few}{more}."


def _inventory(layers: Sequence[LayerInfo]) -> str:
    counts: Counter[str] = Counter(layer.type for layer in layers)
    listed = ", ".join(f"{name} ×{count}" for name, count in counts.most_common(8))
    return f"Layers here: {listed}." if listed else "The model has no layer that can be compressed."
