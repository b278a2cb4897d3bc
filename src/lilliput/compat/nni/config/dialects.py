"""Translate the config lists of NNI 2019, v1, v2 and v3 to the current config language.

Each generation is a few rows in the tables of ``keys``; :func:`translate` applies them to a
config list and notes, rule by rule, what was translated. It never guesses: a key without an exact
equivalent, or two keys that contradict each other, become a :class:`~lilliput.errors.Problem`.
Unknown keys and values of the wrong type are kept, because the validator reports them better.

Examples
--------
>>> old = [{"sparsity": 0.8, "support_type": "default"}, {"prune": False, "support_op": ["conv1"]}]
>>> result = translate(old)
>>> result.rules[0]
{'sparsity': 0.8, 'op_types': ['default']}
>>> result.rules[1]
{'op_names': ['conv1'], 'exclude': True}
>>> print(result.notes[0])
rule 0: 'support_type' (NNI 2019) reads as 'op_types'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lilliput.compat.nni.config.keys import (
    COMPOUNDS,
    GRAPH_TYPES,
    NEW_SELECTORS,
    OLD_KEYS,
    OLD_SELECTORS,
    PATTERNS,
    PRUNING_KEYS,
    QUANTIZATION_KEYS,
    RENAMES,
    RULE_KEYS,
    TARGETS,
    UNSUPPORTED,
)
from lilliput.compat.nni.config.values import (
    as_list,
    converted,
    is_same,
    keys_of,
    merge,
    strings_of,
    unshared,
)
from lilliput.errors import Problem
from lilliput.printing import shown


@dataclass(frozen=True)
class Translation:
    """A config list in the current language, and how it was translated.

    Parameters
    ----------
    rules : list of dict
        The rules in the current language; entries that are not mappings are unchanged.
    origins : list of int
        For each of ``rules``, the index of the rule that the user wrote.
    notes : list of str
        One line per translation; empty if the list was current already.
    problems : list of Problem
        What has no exact translation. If there are any, ``rules`` must not be used.
    """

    rules: list[dict[str, Any]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def translate(rules: Sequence[Mapping[str, Any]], first: int = 0) -> Translation:
    """Translate a config list of any NNI generation; never raises and never changes its input.

    Parameters
    ----------
    rules : sequence of mapping
        The config list as written by the user. A single mapping is read as a list of one.
    first : int
        The number of the first of these rules in the user's list, for notes and problems.

    Returns
    -------
    Translation
        The modern rules with their origins, notes and problems.

    Examples
    --------
    >>> result = translate([{"op_types": ["Linear"], "op_names_re": ["enc"], "sparse_ratio": 0.5}])
    >>> result.rules
    [{'op_types': ['Linear'], 'sparsity': 0.5, 'op_names': ['re:enc.*']}]

    In 2019 a type and a name in one rule meant type OR name, which takes two rules now:

    >>> translate([{"support_type": ["Linear"], "support_op": ["conv1"], "sparsity": 0.5}]).origins
    [0, 0]
    """
    result = Translation()
    if isinstance(rules, Mapping):
        rules = [rules]
    items = None if isinstance(rules, (str, bytes)) else converted(list, rules)
    if items is None:
        message = f"expected a list of rules, received {shown(rules)}."
        result.problems.append(Problem("", message))
        return result
    for index, item in enumerate(items, first):
        rule = converted(dict, item) if isinstance(item, Mapping) else None
        if rule is None:
            result.rules.append(item)
            result.origins.append(index)
            continue
        draft = _Draft(index, {key: unshared(value) for key, value in rule.items()}, result)
        for modern in draft.translate():
            result.rules.append(modern)
            result.origins.append(index)
    return result


@dataclass
class _Draft:
    """One rule during translation; every step moves old keys out of ``rule`` and adds current ones."""

    index: int
    rule: dict[str, Any]
    result: Translation
    sources: dict[str, str] = field(default_factory=dict)  # key -> key in the user's rule

    def translate(self) -> list[dict[str, Any]]:
        is_2019 = not OLD_SELECTORS.keys().isdisjoint(self.rule)
        if is_2019:
            self.refuse_mixed_selectors()
        self.drop_unset()
        self.read_targets()
        self.refuse_unsupported()
        self.rename()
        if is_2019:
            self.read_graph_types()
        self.read_prune()
        self.drop_default_granularity()
        self.split_compounds()
        self.append_patterns()
        return self.alternatives() if is_2019 else [self.rule]

    def note(self, text: str) -> None:
        self.result.notes.append(f"rule {self.index}: {text}")

    def problem(self, key: str, message: str) -> None:
        self.result.problems.append(Problem(f"rule {self.index} → {key}", message))

    def put(self, key: str, value: Any, source: str) -> None:
        """Set ``key``, or report that ``source`` contradicts its value."""
        if key not in self.rule:
            self.rule[key] = value
            self.sources[key] = source
            return
        present = self.rule[key]
        agrees, merged = merge(present, value)
        if agrees:
            self.rule[key] = merged
        else:
            other = self.sources.get(key, key)
            message = f"says {shown(value)} but {other!r} says {shown(present)}; keep one of them."
            self.problem(source, message)

    def refuse_mixed_selectors(self) -> None:
        old, *_ = (key for key in OLD_SELECTORS if key in self.rule)
        synonyms = {OLD_SELECTORS[key] for key in OLD_SELECTORS if key in self.rule}
        for key in NEW_SELECTORS:
            # 'op_types' together with 'support_type' is not a mix: put() checks that they agree.
            if key in self.rule and key not in synonyms:
                message = (
                    f"mixes with {old!r} of NNI 2019, where type and name meant type OR name; "
                    "select with 'op_types' and 'op_names' only (type AND name)."
                )
                self.problem(key, message)

    def drop_unset(self) -> None:
        for key in OLD_KEYS:
            if key in self.rule and self.rule[key] is None:
                del self.rule[key]
                self.note(f"{key!r} is None, sets nothing and is dropped")

    def read_targets(self) -> None:
        """Turn v3 targets into ``quant_types`` and their settings into settings of the rule."""
        if "target_names" not in self.rule and "target_settings" not in self.rule:
            return
        listed = self.rule.pop("target_names", None)
        names = strings_of([] if listed is None else listed)
        given = self.rule.pop("target_settings", {})
        settings = converted(dict, given) if isinstance(given, Mapping) else None
        if names is None:
            message = f"expected a list such as ['weight', '_input_'], received {shown(listed)}."
            self.problem("target_names", message)
        if settings is None:
            message = f"expected settings by target, received {shown(given)}."
            self.problem("target_settings", message)
        if names is None or settings is None:
            return
        keys = {*self.rule, *(key for value in settings.values() for key in keys_of(value))}
        quantizes = bool(keys & QUANTIZATION_KEYS) or not keys & PRUNING_KEYS
        kinds = self.check_targets(names, settings, quantizes)
        for target, values in settings.items():
            self.flatten(target, values, quantizes)
        if quantizes and kinds:
            self.put("quant_types", kinds, "target_names" if names else "target_settings")
            self.note(f"targets (NNI v3) read as 'quant_types': {kinds}")
        elif kinds:
            self.note("targets (NNI v3) are dropped: pruning masks the weight, the bias follows")

    def check_targets(
        self, names: list[str], settings: Mapping[Any, Any], quantizes: bool
    ) -> list[str]:
        known = {"weight", "input", "output"} if quantizes else {"weight", "bias"}
        what = "quantization" if quantizes else "pruning"
        kinds: list[str] = []
        for key, targets in (("target_names", names), ("target_settings", list(settings))):
            for target in targets:
                kind = TARGETS.get(target) if isinstance(target, str) else None
                if kind not in known:
                    expected = [t for t, k in TARGETS.items() if k in known]
                    message = f"{what} acts on {expected}, received {shown(target)}; remove it."
                    self.problem(key, message)
                elif kind in kinds:
                    continue
                elif key == "target_settings" and names:
                    message = f"has settings for {target!r}, which 'target_names' does not list."
                    self.problem(key, message)
                else:
                    kinds.append(str(kind))
        if kinds == ["bias"]:
            self.problem("target_names", "pruning acts on the weight; 'bias' alone is unsupported.")
        return kinds

    def flatten(self, target: Any, values: Any, quantizes: bool) -> None:
        """Move the settings of one target into the rule, where later steps read them."""
        kind = TARGETS.get(target) if isinstance(target, str) else None
        settings = converted(dict, values) if isinstance(values, Mapping) else None
        where = f"target_settings → {shown(target)}"
        if settings is None:
            self.problem(where, f"expected a mapping of settings, received {shown(values)}.")
            return
        for key, value in settings.items():
            source = f"{where} → {key}" if isinstance(key, str) else where
            if value is None or kind is None or (kind == "bias" and _follows_weight(key, value)):
                continue
            if key in RULE_KEYS:
                self.problem(source, "belongs to the rule, not to one target; move it up.")
            elif kind == "bias":
                self.problem(source, "the bias follows its weight; remove this setting.")
            elif quantizes and key not in PRUNING_KEYS:
                self.put(key, {kind: value}, source)
            else:
                self.put(key, unshared(value), source)

    def refuse_unsupported(self) -> None:
        for key, reason in UNSUPPORTED.items():
            if key not in self.rule:
                continue
            value = self.rule.pop(key)
            if key == "apply_method" and isinstance(value, str) and value == "mul":
                self.note("'apply_method': 'mul' (NNI v3) is dropped: masks always multiply")
            else:
                message = f"{key!r} (NNI v3) {reason}"
                self.problem(self.sources.get(key, key), message)

    def rename(self) -> None:
        for old, new, era in RENAMES:
            if old in self.rule:
                value = self.rule.pop(old)
                is_list = new in NEW_SELECTORS
                self.put(new, as_list(value) if is_list else value, self.sources.get(old, old))
                self.note(f"{old!r} ({era}) reads as {new!r}")

    def read_graph_types(self) -> None:
        entries = strings_of(self.rule.get("op_types", []))
        operations = [entry for entry in entries or [] if entry in GRAPH_TYPES]
        for name in operations:
            self.note(f"{name!r} (an operation of TensorFlow 1) reads as {GRAPH_TYPES[name]!r}")
        if operations:
            self.rule["op_types"] = [GRAPH_TYPES.get(entry, entry) for entry in entries or []]

    def read_prune(self) -> None:
        if "prune" not in self.rule:
            return
        prune = self.rule.pop("prune")
        if not isinstance(prune, bool):
            self.problem("prune", f"expected True or False, received {shown(prune)}.")
        elif not prune:
            self.put("exclude", True, "prune")
            self.note("'prune': False (NNI 2019) reads as 'exclude': True")
        elif is_same(self.rule.get("exclude", False), False):
            self.note("'prune': True (NNI 2019) is dropped: rules prune unless they exclude")
        else:
            self.problem("prune", "says True but 'exclude' is set; keep one of them.")

    def drop_default_granularity(self) -> None:
        value = self.rule.get("granularity")
        is_dict = type(value) is dict
        by_type = value if type(value) is dict else {"": value}
        kept = {k: v for k, v in by_type.items() if not (isinstance(v, str) and v == "default")}
        if len(kept) == len(by_type):
            return
        del self.rule["granularity"]
        if is_dict and kept:
            self.rule["granularity"] = kept
        self.note("'granularity': 'default' (NNI v3) is dropped: the algorithm chooses")

    def split_compounds(self) -> None:
        for key, second_key, era, pattern, convert in COMPOUNDS:
            value = self.rule.get(key)
            is_dict = type(value) is dict
            first = dict(value) if type(value) is dict else {"": value}
            second: dict[Any, Any] = {}
            for kind, text in first.items():
                match = pattern.fullmatch(text) if isinstance(text, str) else None
                if match:
                    first[kind] = match["first"]
                    second[kind] = convert(match["second"])
            if second:
                self.rule[key] = first if is_dict else first[""]
                source = self.sources.get(key, key)
                self.put(second_key, second if is_dict else second[""], source)
                self.note(f"{key!r}: {shown(value)} ({era}) reads as {key!r} and {second_key!r}")

    def append_patterns(self) -> None:
        for old, new, era, written in PATTERNS:
            if old not in self.rule:
                continue
            value = self.rule.pop(old)
            entries = strings_of(value)
            present = strings_of(self.rule.get(new, []))
            if entries is None:
                self.problem(old, f"expected a list of strings, received {shown(value)}.")
            elif present is None:
                self.problem(new, f"expected strings, received {shown(self.rule[new])}.")
            else:
                added = [written(entry) for entry in entries]
                self.rule[new] = present + added
                self.note(f"{old!r} ({era}) reads as {shown(added)} in {new!r}")

    def alternatives(self) -> list[dict[str, Any]]:
        """Split a 2019 rule, where type OR name selects, into two that select by one of them."""
        rule = self.rule
        if "op_types" not in rule or "op_names" not in rule:
            return [rule]
        by_type = {key: unshared(v) for key, v in rule.items() if key != "op_names"}
        by_name = {key: unshared(v) for key, v in rule.items() if key != "op_types"}
        if is_same(rule["op_names"], []):
            return [by_type]
        if is_same(rule["op_types"], []):
            return [by_name]
        self.note("a type and a name (NNI 2019) mean type OR name: read as two rules")
        return [by_type, by_name]


def _follows_weight(key: Any, value: Any) -> bool:
    """Whether a setting of the bias only spells out NNI's default: masked like its weight."""
    if key == "apply_method":
        return is_same(value, "mul")
    if key != "align" or type(value) is not dict:
        return False
    return value.get("module_name") is None and is_same(value.get("target_name"), "weight")
