"""Search sparsities of layers by masks, as a task for the strategies of :mod:`lilliput.search`.

NNI's search pruners count masked weights, layer by layer, and need no inputs of the model. So a
decision is the sparsity of one layer, a budget is the number of weights that a rule keeps, and a trial prunes
the model in place, fine-tunes it if requested, evaluates it and restores it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from lilliput.config.layer import LayerInfo
from lilliput.ops.masks import prune_count
from lilliput.search.budget import Limit
from lilliput.search.solve import Array, Choice, Term, total
from lilliput.search.space import Decision
from lilliput.search.task import Task, Trial

Rules = list[dict[str, Any]]
_GRID = [round(0.05 * step, 2) for step in range(20)]  # 0 to 0.95
_OF_SEARCH = ("sparsity", "total_sparsity", "max_sparsity_per_layer", "op_types", "op_names")


@dataclass
class MaskSpace:
    """One decision for each layer that a pruner has selected.

    Parameters
    ----------
    layers : list of LayerInfo
        The selected layers, each with the settings of its rule.
    rules : list of int
        The rule that selected each of them.
    is_shared : bool
        Whether a plain ``sparsity`` is that of all layers of a rule together, as in 1.x; since 2.5 it is
        that of each layer, and ``total_sparsity`` is distributed.
    units : list of int
        The number of weights or channels of each layer that can be removed.
    """

    layers: list[LayerInfo]
    rules: list[int]
    is_shared: bool
    units: list[int]
    decisions: list[Decision] = field(init=False)

    def __post_init__(self) -> None:
        self.decisions = [
            Decision("sparsity", (layer.name,), tuple(self._choices(layer, n)))
            for layer, n in zip(self.layers, self.units, strict=True)
        ]

    @property
    def sizes(self) -> list[int]:
        """The number of alternatives of each decision."""
        return [len(decision.choices) for decision in self.decisions]

    def target(self, layer: LayerInfo) -> float | None:
        """Return the share that a layer's rule removes from all its layers together, None if from each."""
        found = layer.config.get("total_sparsity")
        return layer.config.get("sparsity") if found is None and self.is_shared else found

    def _choices(self, layer: LayerInfo, units: int) -> list[float]:
        target = self.target(layer)
        if target is None:
            return [float(layer.config["sparsity"])]
        most = layer.config.get("max_sparsity_per_layer") or 1.0
        # Include the target and the next whole unit above it, so that uniform sparsities meet the
        # budget.
        listed = {*_GRID, target, math.ceil(round(target * units, 6)) / units}
        return sorted(x for x in listed if x <= most and x < 1)

    def alike(self) -> Choice:
        """Return the choice that removes the same share from all layers of a rule, rounded up."""
        return tuple(
            next(
                (i for i, x in enumerate(d.choices) if x * n >= share * n - 1e-6),
                len(d.choices) - 1,
            )
            for d, n, share in zip(self.decisions, self.units, self._targets(), strict=True)
        )

    def _targets(self) -> list[float]:
        return [self.target(layer) or 0.0 for layer in self.layers]

    def config_list(self, choice: Sequence[int]) -> Rules:
        """Return a rule for each layer, including those that lose nothing."""
        found = []
        for layer, decision, index in zip(self.layers, self.decisions, choice, strict=True):
            kept = {k: v for k, v in layer.config.items() if k not in _OF_SEARCH}
            found.append({"op_names": [layer.name], **kept, "sparsity": decision.choices[index]})
        return found


class MaskTask(Task):
    """The interface for strategies: budgets of weights, scores from weights, trials by the program.

    Parameters
    ----------
    space : MaskSpace
        The possible choices.
    left, lost : list of array
        For each layer and alternative, how many weights are kept, and what share of the squares is lost.
    baseline : callable
        Returns the metric of the unpruned model.
    metric_of : callable
        Returns the metric of a choice.
    trials, seed : int
        See :class:`~lilliput.search.task.Task`.
    """

    def __init__(
        self,
        space: MaskSpace,
        left: list[Array],
        lost: list[Array],
        baseline: Callable[[], float],
        metric_of: Callable[[Choice], float],
        trials: int,
        seed: int = 0,
    ) -> None:
        self.metric_of, self.metric_before = metric_of, baseline
        self.left_of, self.lost = left, lost
        sizes = [math.prod(layer.shape) for layer in space.layers]
        self.by_rule: dict[str, list[int]] = {}
        for number, (layer, rule) in enumerate(zip(space.layers, space.rules, strict=True)):
            if space.target(layer) is not None:
                self.by_rule.setdefault(f"weights left by rule {rule}", []).append(number)
        limits = {}
        for name, numbers in self.by_rule.items():
            count = sum(sizes[i] for i in numbers)
            share = space.target(space.layers[numbers[0]]) or 0.0
            limits[name] = Limit(name, float(count - prune_count(count, share)), False)
        self.all_of = {name: float(sum(sizes[i] for i in x)) for name, x in self.by_rule.items()}
        maker: Any = SimpleNamespace(space=space, data=(), recover="none")
        notes: Any = _Notes()
        counts: Any = None
        super().__init__(maker, counts, limits, metric_of, notes, None, 0, trials, seed)

    @cached_property
    def baseline(self) -> float:
        """The metric of the unpruned model."""
        return self.metric_before()

    @cached_property
    def scores(self) -> list[Array]:
        """The share of the squares of its weights that a layer loses."""
        return self.lost

    @cached_property
    def whole(self) -> dict[str, float]:
        """The number of weights in the layers of each rule."""
        return self.all_of

    @cached_property
    def costs(self) -> dict[str, list[Term]]:
        """The number of weights that are kept."""
        return {
            name: [Term((i,), self.left_of[i]) for i in numbers]
            for name, numbers in self.by_rule.items()
        }

    def best(self) -> Trial:
        """Return the best trial that meets the budgets."""
        kept = [trial for trial in self.tried.values() if self.keeps(trial.costs)]
        return max(kept, key=lambda trial: trial.metric)

    def _measured(self, choice: Choice) -> dict[str, float]:
        return {name: total(terms, choice) for name, terms in self.costs.items()}

    def _evaluated(self, choices: Sequence[Choice]) -> Iterator[float]:
        for choice in choices:
            yield self.metric_of(choice)


class _Notes(dict[str, Any]):
    """A journal in memory, like the weights that a program fine-tunes."""

    note = dict.__setitem__


def measured_masks(
    space: MaskSpace, masks_of: Callable[[Rules], Mapping[str, tuple[float, float]]]
) -> tuple[list[Array], list[Array]]:
    """Return how much of each layer each alternative keeps and loses, according to a base algorithm.

    Parameters
    ----------
    space : MaskSpace
        The possible choices.
    masks_of : callable
        For rules, the kept weights of each layer that they name, and the share of squares lost.
    """
    left = [
        np.full(n, float(math.prod(x.shape)))
        for n, x in zip(space.sizes, space.layers, strict=True)
    ]
    lost = [np.zeros(n) for n in space.sizes]
    for step in range(max(space.sizes, default=0)):
        choice = [min(step, n - 1) for n in space.sizes]
        found = masks_of(space.config_list(choice))
        for number, layer in enumerate(space.layers):
            if layer.name in found:
                left[number][choice[number]], lost[number][choice[number]] = found[layer.name]
    return left, [np.maximum.accumulate(x) for x in lost]
