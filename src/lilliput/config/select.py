"""Match rules with layers: the last rule that matches wins, as a whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice

from lilliput.config.layer import LayerInfo
from lilliput.config.spec import Rule
from lilliput.errors import MOST_PROBLEMS, Problem, nearest
from lilliput.printing import printable, shown


@dataclass(frozen=True)
class Decision:
    """The decision on one layer, and the rule (in the user's numbering) that made it."""

    layer: LayerInfo
    rule: int | None
    excluded: bool = False
    obstacle: str = ""  # why the algorithm cannot compress a layer that a rule selects
    default: str = ""  # why the algorithm compresses a layer that no rule names
    follows: str = ""  # the selected layer with which one that no rule names loses channels

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.obstacle:
            return f"left alone: {self.obstacle}"
        if self.follows:
            return f"loses channels with {self.follows}"
        if self.rule is None:
            return f"by default: {self.default}" if self.default else "no rule matches"
        return f"excluded by rule {self.rule}" if self.excluded else f"rule {self.rule}"

    @property
    def is_chosen(self) -> bool:
        """Whether the layer is compressed."""
        is_taken = self.rule is not None or bool(self.default)
        return is_taken and not self.excluded and not self.obstacle


@dataclass(frozen=True)
class Selection:
    """The result of matching a config list with a model's layers."""

    decisions: tuple[Decision, ...]
    problems: tuple[Problem, ...]

    @property
    def chosen(self) -> list[LayerInfo]:
        """The layers to compress, each with its ``config`` filled in."""
        return [d.layer for d in self.decisions if d.is_chosen]

    def __str__(self) -> str:
        """Return one line per layer: name, type, shape, its rule and the settings."""
        rows: list[tuple[str, ...]] = [("layer", "type", "weight", "decision", "asks for")]
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
        rows = [tuple(printable(cell) for cell in row) for row in rows]
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
        Everything in the model that can be compressed.
    rules : sequence of Rule
        In the order the user wrote them.
    default_types : collection of str
        The meaning of ``'default'``.
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
    takers: dict[int, int] = {}  # column of a layer -> the last rule that matches
    problems: list[Problem] = []
    inventory = _Inventory(layers, is_known_type)
    for i, rule in enumerate(rules):
        test = _Match(rule, default_types)
        hits = [column for column, layer in enumerate(layers) if test.takes(layer)]
        takers |= dict.fromkeys(hits, i)
        if len(problems) <= MOST_PROBLEMS:
            problems += inventory.find_problems(rule, f"rule {numbers[i]}", bool(hits))
    decisions = []
    for column, layer in enumerate(layers):
        taker = takers.get(column)
        if taker is None:
            decisions.append(Decision(layer, None))
        else:
            rule = rules[taker]
            chosen = replace(layer, config=rule.settings())
            decisions.append(Decision(chosen, numbers[taker], rule.exclude))
    if not problems and not any(d.rule is not None and not d.excluded for d in decisions):
        problems.append(Problem("", f"no layer is left to compress. {inventory}", True))
    return Selection(tuple(decisions), tuple(problems))


class _Match:
    """The selection of one rule."""

    def __init__(self, rule: Rule, default_types: Collection[str]) -> None:
        types = rule.op_types or ["default"]
        expanded = (default_types if name == "default" else [name] for name in types)
        self.types = _Entries(name for names in expanded for name in names)
        self.names = _Entries(rule.op_names or ())
        # A layer with its full name is meant, whatever its type.
        self.full_names = frozenset() if rule.op_types else frozenset(rule.op_names or ())

    def takes(self, layer: LayerInfo) -> bool:
        """Whether type and name match."""
        names = layer.names
        of_type = self.types.accept(layer.types) or not self.full_names.isdisjoint(names)
        return of_type and self.names.accept(names, patterns=True)


class _Entries:
    """A list of names, some of which are negated."""

    def __init__(self, entries: Iterable[str]) -> None:
        listed = list(entries)
        self.wanted = frozenset(entry for entry in listed if not entry.startswith("!"))
        self.unwanted = frozenset(entry[1:] for entry in listed if entry.startswith("!"))
        # Most entries are plain names, which a set finds immediately.
        self.patterns = [entry for entry in self.wanted if _is_pattern(entry)]
        self.unwanted_patterns = [entry for entry in self.unwanted if _is_pattern(entry)]

    def accept(self, names: Collection[str], patterns: bool = False) -> bool:
        """Whether one positive entry matches (or there is none) and no negated one does."""
        wanted, unwanted = (self.patterns, self.unwanted_patterns) if patterns else ((), ())
        is_wanted = not self.wanted or _any_fits(self.wanted, wanted, names)
        return is_wanted and not _any_fits(self.unwanted, unwanted, names)


def _any_fits(entries: frozenset[str], patterns: Sequence[str], names: Collection[str]) -> bool:
    if not entries.isdisjoint(names):
        return True
    return any(_fits(pattern, name) for pattern in patterns for name in names)


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(mark in entry for mark in "*?[")


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


class _Inventory:
    """The layers of a model, to check rules against; ``str()`` counts them by type."""

    def __init__(self, layers: Sequence[LayerInfo], is_known_type: Callable[[str], bool]) -> None:
        self.is_known_type = is_known_type
        self.counts: Counter[str] = Counter(layer.type for layer in layers)
        # A layer's own name first, then those of its bases and aliases.
        types = [layer.type for layer in layers]
        types += sorted({name for layer in layers for name in layer.types})
        self.types = dict.fromkeys(types)
        self.paths = {name for layer in layers for name in layer.names}

    def __str__(self) -> str:
        common = self.counts.most_common(8)
        listed = ", ".join(f"{printable(name)} ×{count}" for name, count in common)
        return (
            f"Layers here: {listed}."
            if listed
            else "The model has no layer that can be compressed."
        )

    def find_problems(self, rule: Rule, place: str, has_hits: bool) -> list[Problem]:
        """Return which names of a rule are not in the model, or that it selects no layer."""
        problems = [
            Problem(f"{place} → op_types", f"{shown(name)} matches no layer.{hint} {self}", True)
            for name, hint in self._unknown_types(rule)
        ]
        for entry in rule.op_names or []:
            pattern = entry.removeprefix("!")
            text = self._fault_of_name(pattern)
            if text:
                is_valid = not pattern.startswith("re:") or _compile(pattern[3:]) is not None
                problems.append(Problem(f"{place} → op_names", text, is_valid))
            if len(problems) > MOST_PROBLEMS:
                break
        if not problems and not has_hits and not rule.exclude:
            asked = {"op_types": rule.op_types, "op_names": rule.op_names}
            wanted = ", ".join(f"{key} {shown(value)}" for key, value in asked.items() if value)
            hint = " Patterns match only the default types; add op_types for others."
            hint = hint if rule.op_names and not rule.op_types else ""
            text = f"{wanted or 'the default types'} matches no layer.{hint} {self}"
            problems.append(Problem(place, text, True))
        return problems

    def _unknown_types(self, rule: Rule) -> Iterable[tuple[str, str]]:
        names = (entry.removeprefix("!") for entry in rule.op_types or [])
        unknown = (
            name
            for name in names
            if name != "default" and name not in self.types and not self.is_known_type(name)
        )
        for name in islice(unknown, MOST_PROBLEMS + 1):
            yield name, nearest(name, self.types)

    def _fault_of_name(self, pattern: str) -> str:
        if pattern.startswith("re:") and _compile(pattern[3:]) is None:
            return f"{shown(pattern[3:])} is not a regular expression that Python can compile."
        if pattern in self.paths:
            return ""
        if _is_pattern(pattern) and any(_fits(pattern, path) for path in self.paths):
            return ""
        return _no_such_name(pattern, self.paths)


def _no_such_name(pattern: str, paths: Collection[str]) -> str:
    inside = sorted(path for path in paths if path.startswith(f"{pattern}."))
    if inside:
        whole = shown(f"{pattern}.*")
        return f"{shown(pattern)} contains layers but is not a layer itself: write {whole}."
    few = ", ".join(shown(path) for path in sorted(paths)[:6])
    more = ", …" if len(paths) > 6 else ""
    return f"{shown(pattern)} matches no layer.{nearest(pattern, paths)} Names here: {few}{more}."
