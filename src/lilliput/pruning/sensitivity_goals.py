"""The target of each rule for its layers together, and the next step towards it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.channels import channel_rows
from lilliput.ops.masks import prune_count
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.sensitivity_files import Curves
from lilliput.pruning.sensitivity_probe import accepts
from lilliput.pruning.sensitivity_shares import Stock, share_removals


@dataclass(frozen=True)
class Goal:
    """The layers of one rule, and how many weights to remove from them together.

    Parameters
    ----------
    rule : int
        Number of the rule in the user's config list.
    target : int
        Weights to remove.
    sizes, units, caps : dict
        For each layer: its number of weights, the weights per unit, and the most that may be removed.
    """

    rule: int
    target: int
    sizes: dict[str, int]
    units: dict[str, int]
    caps: dict[str, int]

    def missing(self, removed: Mapping[str, int]) -> int:
        """Return how many weights are still to be removed."""
        return self.target - sum(removed[name] for name in self.sizes)

    def is_met(self, removed: Mapping[str, int]) -> bool:
        """Whether less than one unit is missing."""
        return self.missing(removed) < min(self.units.values())

    def is_near(self, removed: Mapping[str, int]) -> bool:
        """Whether less than the largest unit is missing, so that no whole unit may fit."""
        return self.missing(removed) < max(self.units.values())

    def step(self, per_round: float) -> int:
        """Return how many weights to remove per round, at least one unit."""
        return max(round(per_round * sum(self.sizes.values())), min(self.units.values()))

    def next_sparsities(
        self, removed: Mapping[str, int], ratios: Mapping[str, float], per_round: float
    ) -> dict[str, float]:
        """Return the sparsity of each layer after the next round, for the layers that change."""
        stocks = {
            name: Stock(size, removed[name], self.units[name], self.caps[name], ratios[name])
            for name, size in self.sizes.items()
        }
        units = share_removals(stocks, min(self.step(per_round), self.missing(removed)))
        return {
            name: (removed[name] + count * self.units[name]) / self.sizes[name]
            for name, count in units.items()
            if count
        }

    def why_stuck(
        self,
        removed: Mapping[str, int],
        ratios: Mapping[str, float],
        smallest: float,
        threshold: float,
        baseline: float,
    ) -> str:
        """Return why no layer can lose any more weights, and what to do."""
        start = f"rule {self.rule}: {self.missing(removed)} weights are still to be removed, and "
        if any(ratios[name] > 0 for name in self.sizes):
            return f"{start}its layers are at their limits; lower the sparsity, or add layers to the rule."
        return (
            f"{start}no layer of the rule can lose even {smallest:.0%} of its weights: "
            f"acc_drop_threshold={threshold:g} is too strict for a metric of {baseline:.4g}. Raise "
            "it, give smaller 'sparsities' to scan, or a 'finetuner'."
        )


def ask_for_ratios(
    calc: Callable[..., Mapping[str, float]], baseline: float, threshold: float, curves: Curves
) -> dict[str, float]:
    """Return the ratios that a user's function gives each layer, with one or three arguments."""
    copies = {name: dict(curve) for name, curve in curves.items()}
    ratios = dict(calc(copies) if accepts(calc, copies) else calc(baseline, threshold, copies))
    wrong = [name for name in curves if not 0 <= ratios.get(name, -1) < math.inf]
    if wrong:
        raise AlgorithmError(
            f"sparsity_proportion_calc returned {ratios.get(wrong[0])!r} for layer {wrong[0]!r}; "
            f"expected a ratio of 0 or more for each of: {', '.join(curves)}."
        )
    return ratios


def removed_from(layer: LayerInfo, mask: Tensor, by_channel: bool) -> int:
    """Return how many weights of a layer are removed, individually or with their output channel."""
    xp = namespace(mask)
    if not by_channel:
        return int(xp.size(mask) - xp.count_nonzero(mask))
    kept = xp.count_nonzero(xp.sum(channel_rows(mask, layer.out_axis, layer.out_groups), axis=1))
    return (layer.out_channels - int(kept)) * unit_of(layer, by_channel)


def unit_of(layer: LayerInfo, by_channel: bool) -> int:
    """Return how many weights are removed together: one, or those of an output channel."""
    return math.prod(layer.shape) // layer.out_channels if by_channel else 1


def goals_of(selection: Selection, by_channel: bool) -> list[Goal]:
    """Return the goal of each rule."""
    layers_of: dict[int, list[tuple[str, int, int]]] = {}
    config_of = {}
    for decision in selection.decisions:
        layer = decision.layer
        if decision.rule is None or not decision.is_chosen:
            continue
        size, unit = math.prod(layer.shape), unit_of(layer, by_channel)
        layers_of.setdefault(decision.rule, []).append((layer.name, size, unit))
        config_of[decision.rule] = layer.config
    goals = []
    for rule, layers in layers_of.items():
        config = config_of[rule]
        sparsity: float | None = config.get("sparsity", config.get("total_sparsity"))
        if sparsity is None:
            raise ConfigError(
                f"rule {rule}: SensitivityPruner needs 'sparsity', the overall fraction to remove from the "
                "rule's layers."
            )
        cap = config.get("max_sparsity_per_layer", 1.0)
        sizes = {name: size for name, size, _ in layers}
        units = {name: unit for name, _, unit in layers}
        caps = {name: prune_count(size, cap) for name, size in sizes.items()}
        goals.append(Goal(rule, prune_count(sum(sizes.values()), sparsity), sizes, units, caps))
    return goals
