"""The search space: rules with alternatives become decisions, coupled layers a single one.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> rules = [{"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}, "quant_bits": {"choose": [4, 8]}}]
>>> space = Space(model, rules, torch.zeros(2, 4))
>>> for decision in space.decisions:
...     print(decision)
sparsity of 0: 0 or 0.5
quant_bits of 0: 8 or 4
quant_bits of 2: 8 or 4
>>> space.config_list((1, 0, 1))
[{'op_names': ['0'], 'sparsity': 0.5, 'quant_bits': 8}, {'op_names': ['2'], 'quant_bits': 4}]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lilliput.config.layer import LayerInfo
from lilliput.errors import ConfigError, Problem
from lilliput.frameworks import backend_of
from lilliput.graph.collect import find_groups
from lilliput.pruning.channel_masks import removed_units
from lilliput.pruning.sensitivity_probe import Probe
from lilliput.quantization.grids import bits_of
from lilliput.registry import quantizers
from lilliput.search.rules import SELECTING, ChoiceRule, read_choices

FLOAT_BITS = 32
Removed = dict[str, np.ndarray[Any, np.dtype[np.bool_]]]


@dataclass(frozen=True)
class Decision:
    """One decision: a sparsity for layers with coupled channels, or the bits of a layer.

    Parameters
    ----------
    key : str
        ``"sparsity"`` or ``"quant_bits"``.
    layers : tuple of str
        The layers that it applies to.
    choices : tuple
        The alternatives, the mildest first; None among bits leaves a layer in floating point.
    groups : tuple of str
        The channel groups that lose channels.
    """

    key: str
    layers: tuple[str, ...]
    choices: tuple[Any, ...]
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed = " or ".join("float" if x is None else str(x) for x in self.choices)
        return f"{self.key} of {', '.join(self.layers)}: {listed}"


class Space:
    """All decisions of a search, and the config lists that can result.

    Parameters
    ----------
    model : object
        The model; only read.
    config_list : list of dict, or path
        Rules in which ``sparsity`` and ``quant_bits`` may be ``{"choose": [...]}``.
    example_inputs : tensor, tuple or dict
        Inputs of the model, with a batch of at least two.
    pruner, quantizer : str
        Names of a pruner that removes channels by their weights, and of a quantizer.
    """

    def __init__(
        self,
        model: Any,
        config_list: Any,
        example_inputs: Any,
        pruner: str = "l1",
        quantizer: str = "ptq",
    ) -> None:
        self.model, self.example_inputs = model, example_inputs
        self.pruner, self.quantizer = pruner, quantizer
        self.backend = backend_of(model)
        self.layers = {layer.name: layer for layer in self.backend.layers(model)}
        self.order = {name: i for i, name in enumerate(self.layers)}
        rules = read_choices(config_list, model, pruner, quantizer)
        self.groups = find_groups(self.backend.graph(model, example_inputs))
        self.decisions: list[Decision] = []
        self.settings: dict[str, dict[str, dict[str, Any]]] = {"sparsity": {}, "quant_bits": {}}
        self.removed: list[list[Removed]] = []  # of each decision by its choices; none for bits
        # Layers with coupled channels whose rules have other sparsities than they share.
        self.narrowed: list[str] = []
        self.probe: Any = None
        problems = [*self._add_channels(rules), *self._add_bits(rules)]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)), title="Search")

    @property
    def sizes(self) -> list[int]:
        """The number of alternatives of each decision."""
        return [len(decision.choices) for decision in self.decisions]

    @property
    def count(self) -> int:
        """The number of possible config lists."""
        return int(np.prod([1, *self.sizes], dtype=object))

    def bits_decision(self, layer: str) -> int | None:
        """Return the number of the decision on a layer's bits."""
        found = (i for i, d in enumerate(self.decisions) if d.key == "quant_bits")
        return next((i for i in found if layer in self.decisions[i].layers), None)

    def quantized(self, layer: str, bits: Any) -> LayerInfo:
        """Return a layer with its settings when quantized to this number of bits."""
        settings = {**self.settings["quant_bits"][layer], "quant_bits": bits}
        return replace(self.layers[layer], config=settings)

    def weight_bits(self, number: int) -> list[int]:
        """Return the bits of the weight for each choice of a decision on bits."""
        choices = self.decisions[number].choices
        return [FLOAT_BITS if x is None else bits_of({"quant_bits": x}, "weight") for x in choices]

    # -- from choices to config lists ------------------------------------------------------------------

    def config_list(self, choice: Sequence[int]) -> list[dict[str, Any]]:
        """Return the sparsity and bits of each layer for a choice, in one list."""
        return self._rules(choice, ("sparsity", "quant_bits"))

    def pruning(self, choice: Sequence[int]) -> list[dict[str, Any]]:
        """Return the config list for the pruner, empty if nothing is pruned."""
        return self._rules(choice, ("sparsity",))

    def quantization(self, choice: Sequence[int]) -> list[dict[str, Any]]:
        """Return the config list for the quantizer, empty if nothing is quantized."""
        return self._rules(choice, ("quant_bits",))

    def _rules(self, choice: Sequence[int], keys: tuple[str, ...]) -> list[dict[str, Any]]:
        by_layer: dict[str, dict[str, Any]] = {}
        for decision, index in zip(self.decisions, choice, strict=True):
            value = decision.choices[index]
            if decision.key in keys and value is not None and value != 0:
                for layer in decision.layers:
                    held = by_layer.setdefault(layer, {})
                    held |= {**self.settings[decision.key][layer], decision.key: value}
        rules: list[dict[str, Any]] = []
        for layer in sorted(by_layer, key=self.order.__getitem__):
            alike = (rule for rule in rules if _same(rule, by_layer[layer]))
            rule = next(alike, None)
            if rule is None:
                rules.append({"op_names": [layer], **by_layer[layer]})
            else:
                rule["op_names"].append(layer)
        return rules

    # -- from rules to decisions -------------------------------------------------------------------------

    def _add_channels(self, rules: Sequence[ChoiceRule]) -> list[Problem]:
        """Add a decision for each set of layers with coupled channels."""
        if not any("sparsity" in rule.choices for rule in rules):
            return []
        try:
            self.probe = self._probe(rules)
        except ConfigError as error:
            return list(error.problems)
        if not self.probe.by_channel:
            text = f"{self.pruner!r} removes single weights, which makes nothing smaller; expected 'l1' or"
            return [Problem("pruner", f"{text} another pruner of channels.")]
        takers = {d.layer.name: rules[d.rule] for d in _chosen(self.probe.selection)}
        problems = []
        for names, groups in _coupled(self.probe.layout.pruned):
            names.sort(key=self.order.__getitem__)
            lists = [takers[name].choices["sparsity"] for name in names]
            choices = _shared(lists)
            listed = ", ".join(map(repr, names))
            if not choices or (max(choices) == 0 and any(max(x) > 0 for x in lists)):
                text = (
                    f"the channels of {listed} are removed together, but their rules have no sparsity above "
                    "0 in common; use one rule for them."
                )
                problems.append(Problem("sparsity", text))
            if any(set(x) != set(choices) for x in lists):
                self.narrowed.append(listed)
            for name in names:
                self.settings["sparsity"][name] = takers[name].settings("sparsity")
            self.decisions.append(Decision("sparsity", tuple(names), tuple(choices), tuple(groups)))
        if not problems:
            self._find_removed()
        return problems

    def _probe(self, rules: Sequence[ChoiceRule]) -> Probe:
        given = [rule.first("sparsity") for rule in rules]
        try:
            return Probe(self.pruner, self.model, given, self.example_inputs)
        except ConfigError as error:
            # The pruner raises for layers that cannot lose channels, even if none are requested.
            kept = [
                {**rule.selecting, "exclude": True}
                if rule.choices.get("sparsity") == [0]
                else first
                for rule, first in zip(rules, given, strict=True)
            ]
            if kept == given:
                raise
            try:
                return Probe(self.pruner, self.model, kept, self.example_inputs)
            except ConfigError:
                raise error from None

    def _find_removed(self) -> None:
        """Record which channels each choice removes, as decided by the pruner."""
        steps = max(self.sizes, default=0)
        self.removed = [[] for _ in self.decisions]
        for step in range(steps):
            asked = {
                layer: float(d.choices[min(step, len(d.choices) - 1)])
                for d in self.decisions
                for layer in d.layers
            }
            with self.probe.pruned(asked, {}) as pruner:
                units = removed_units(pruner)
            for decision, found in zip(self.decisions, self.removed, strict=True):
                if step < len(decision.choices):
                    found.append({name: units[name] for name in decision.groups})

    def _add_bits(self, rules: Sequence[ChoiceRule]) -> list[Problem]:
        """Add a decision for each layer that is quantized."""
        if not any("quant_bits" in rule.choices for rule in rules):
            return []
        given = [rule.first("quant_bits") for rule in rules]
        algorithm = quantizers.get(self.quantizer)
        try:
            found = algorithm(self.model, given, example_inputs=self.example_inputs)
        except ConfigError as error:
            return list(error.problems)
        self.targets_of = found.targets_of
        for decision in _chosen(found.selection):
            name, rule = decision.layer.name, rules[decision.rule]
            if decision.layer.weight_name is not None:
                self.settings["quant_bits"][name] = rule.settings("quant_bits")
                choices = tuple(sorted(rule.choices["quant_bits"], key=_falling))
                self.decisions.append(Decision("quant_bits", (name,), choices))
                self.removed.append([])
        return []


def _falling(bits: Any) -> tuple[int, int]:
    """Order bits from many to few: float, then by the weight, then by the input."""
    if bits is None:
        return -FLOAT_BITS, -FLOAT_BITS
    return -bits_of({"quant_bits": bits}, "weight"), -bits_of({"quant_bits": bits}, "input")


def _chosen(selection: Any) -> Iterable[Any]:
    """Return the decisions of rules, without the default selection of an algorithm."""
    return [d for d in selection.decisions if d.is_chosen and d.rule is not None]


def _same(rule: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return {k: v for k, v in rule.items() if k not in SELECTING} == settings


def _shared(lists: Sequence[Sequence[float]]) -> list[float]:
    common = set(lists[0]).intersection(*lists[1:])
    return sorted(common)


def _coupled(pruned: Sequence[Any]) -> list[tuple[list[str], list[str]]]:
    """Return connected layers and groups: a layer may produce channels of several groups."""
    sets: list[tuple[set[str], list[str]]] = []
    for each in pruned:
        names, groups = {member.layer.name for member in each.members}, [each.group.name]
        for other in [x for x in sets if x[0] & names]:
            names |= other[0]
            groups = other[1] + groups
            sets.remove(other)
        sets.append((names, groups))
    return [(list(names), groups) for names, groups in sets]
