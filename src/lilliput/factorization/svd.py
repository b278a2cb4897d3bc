"""SVDFactorizer: replace a layer by two smaller ones whose product is its best low-rank approximation.

A ``Linear`` of ``n`` inputs and ``m`` outputs becomes one from ``n`` to ``r`` and one from ``r`` to ``m``; a
convolution becomes one with ``r`` outputs and a 1×1 convolution. With the singular value decomposition, no
matrix of rank ``r`` is closer to the weight (Eckart & Young, 1936). Denil et al., "Predicting parameters in
deep learning", 2013; Denton et al., "Exploiting linear structure within convolutional networks", 2014.

The result is an ordinary model, immediately smaller and faster, ready to be trained, pruned, quantized or
exported. There is nothing to strip.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
>>> factorizer = SVDFactorizer(model, [{"op_types": ["Linear"], "parameters": 0.5}])
>>> model = factorizer.compress()
>>> model[0]
Sequential(
  (0): Linear(in_features=64, out_features=16, bias=False)
  (1): Linear(in_features=16, out_features=64, bias=True)
)
>>> factorizer.result.ranks
{'0': 16, '2': 4}
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.config.spec import Count, Fraction, Rule
from lilliput.core.binding import select_layers
from lilliput.core.compressor import Compressor
from lilliput.errors import AlgorithmError, Problem, StageError
from lilliput.frameworks import backend_of
from lilliput.measure.receipt import Figures, Receipt
from lilliput.ops.namespace import namespace
from lilliput.registry import register_factorizer

log = logging.getLogger("lilliput")

_CLOSE = 1e-4  # of the largest weight: tolerance between the product and the truncated weight


class SVDRule(Rule):
    """The rank to keep: as a number, or by the share of weights or energy."""

    rank: Count | None = Field(None, description="Outputs of the first of the two layers.")
    energy: Fraction | None = Field(
        None, description="Share of the squared weights to keep at least: 0.9 keeps the main part."
    )
    parameters: Fraction | None = Field(
        None, description="Share of the layer's weights that the two layers may have at most."
    )

    @model_validator(mode="after")
    def _check_one(self) -> SVDRule:
        given = [k for k in ("rank", "energy", "parameters") if getattr(self, k) is not None]
        if not self.exclude and len(given) != 1:
            raise ValueError(
                f"expected one of 'rank', 'energy' and 'parameters', received {given or 'none'}."
            )
        return self


@dataclass(frozen=True)
class Factorization:
    """The result for each layer; ``print`` shows it.

    Attributes
    ----------
    ranks : dict
        The rank of each layer that was replaced.
    energies : dict
        The share of its squared weights that is kept.
    left : dict
        Layers that were not replaced, and why.
    receipt : Receipt
        Parameters and bytes before and after.
    """

    ranks: dict[str, int] = field(default_factory=dict)
    energies: dict[str, float] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    receipt: Any = None

    def config_list(self) -> list[dict[str, Any]]:
        """Return rules that create the same layers in a new model of the original class.

        Compress a new model with them, and load the state dict of the factorized one into it.
        """
        return [{"op_names": [name], "rank": rank} for name, rank in self.ranks.items()]

    def why_left(self) -> str:
        """Return why layers were not replaced, in one line."""
        return "; ".join(f"{name}: {why}" for name, why in self.left.items())

    def __str__(self) -> str:
        width = max(map(len, self.ranks), default=0)
        lines = [f"{len(self.ranks)} layers became two each:"]
        lines += [
            f"  {name:<{width}}  rank {rank}, keeps {self.energies[name]:.1%} of its squared weights"
            for name, rank in self.ranks.items()
        ]
        lines += [f"  {name}: left as it is, {why}" for name, why in self.left.items()]
        return "\n".join([*lines, str(self.receipt)])


@register_factorizer("svd")
class SVDFactorizer(Compressor):
    """Replace each layer with two smaller ones, by singular value decomposition.

    A layer is not replaced, with the reason in ``result.left``, if two layers would not have fewer
    weights, or cannot replace it: grouped convolutions, tied weights, subclasses of these layers.
    Create the optimizer afterwards, because the parameters are new. ``strip()`` has nothing to do, and
    there is no ``state()``; ``result.config_list()`` creates the same layers in a new model, for
    loading a state dict.

    Parameters
    ----------
    model : torch.nn.Module
        The model; its layers are replaced in place.
    config_list : list of dict, or path of a YAML or JSON file
        Rules select ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d``, and have one of ``rank``, ``energy``
        and ``parameters``.

    Attributes
    ----------
    result : Factorization
        Ranks, energies and the receipt, after ``compress()``.
    """

    kind: ClassVar[str] = "factorizer"
    rule: ClassVar[type[Rule]] = SVDRule
    backends: ClassVar[tuple[str, ...]] = ("torch",)
    default_types: ClassVar[frozenset[str] | None] = frozenset(
        {"Conv1d", "Conv2d", "Conv3d", "Linear"}
    )
    paper = "Denton et al. 2014, Exploiting linear structure within convolutional networks"

    result: Factorization | None = None

    def __init__(self, model: Any = None, config_list: Any = None) -> None:
        super().__init__(model, config_list)

    def compress(self, model: Any = None) -> Any:
        """Replace the selected layers, all or none, and return the model."""
        self._take(model)
        if self.result is not None:
            return self.bound_model
        if self._backend is None:
            self._bind()
        pairs, found = self._factorize()
        before = self._tools.count_bytes(self.bound_model)
        self._tools.replace_layers(self.bound_model, pairs)
        after = self._tools.count_bytes(self.bound_model)
        self.result = Factorization(
            **found, receipt=Receipt(_figures("original", before), _figures("factorized", after))
        )
        if not pairs:
            log.warning("SVDFactorizer: no layer was replaced. %s.", self.result.why_left())
        self._has_compressed = True
        return self.bound_model

    def strip(self) -> Any:
        """Return the model, which is already a plain one."""
        return self.bound_model

    def state(self) -> Any:
        """Raise: there is no state besides the model, whose state dict is what to save."""
        raise StageError(
            "SVDFactorizer has no state besides the model: save its state dict, and load it into a new model "
            "that was compressed with result.config_list()."
        )

    @property
    def _tools(self) -> Any:
        return self._backend.factoring()

    def _bind(self) -> None:
        """Match the config with the model; there are no wrappers to create."""
        self._backend = backend_of(self.bound_model)
        self._selection = select_layers(self, self._backend)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        chosen = [decision for decision in selection.decisions if decision.is_chosen]
        return [
            Problem(f"rule {decision.rule}", f"layer {decision.layer.name!r} {why}.")
            for decision in chosen
            if (why := self._tools.problem_of(self.bound_model, decision.layer))
        ]

    def _factorize(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the pairs of layers to insert, and the results for them."""
        from lilliput.ops.low_rank import Decomposition  # here to keep imports fast

        pairs, ranks, energies, left = [], {}, {}, {}
        for layer in self.selection.chosen:
            obstacle = self._tools.obstacle_of(self.bound_model, layer)
            if obstacle:
                left[layer.name] = obstacle
                continue
            parts = Decomposition(self._matrix(layer))
            rank = _rank(parts, layer.config)
            outputs, inputs = parts.matrix.shape
            if not rank or rank * (outputs + inputs) >= outputs * inputs:
                left[layer.name] = f"two layers of rank {rank or 1} would not be smaller"
                continue
            first, second = self._tools.two_layers(layer, *parts.factors(rank))
            self._verify(layer, parts.truncated(rank), first, second)
            pairs.append((layer, first, second))
            ranks[layer.name], energies[layer.name] = rank, parts.energy(rank)
        return pairs, {"ranks": ranks, "energies": energies, "left": left}

    def _matrix(self, layer: LayerInfo) -> Any:
        """Return the weight of a layer as (outputs, everything else)."""
        weight = getattr(layer.module, str(layer.weight_name))
        array = namespace(weight).to_numpy(weight)
        if not (abs(array) < float("inf")).all():
            raise AlgorithmError(f"layer {layer.name!r} has NaN or infinity among its weights.")
        return array.reshape(len(array), -1)

    def _verify(self, layer: LayerInfo, truncated: Any, first: Any, second: Any) -> None:
        """Raise unless the product of the two layers is the truncated weight."""
        matrices = []
        for made in (first, second):
            array = namespace(made.weight).to_numpy(made.weight)
            matrices.append(array.reshape(len(array), -1))
        difference = abs(matrices[1] @ matrices[0] - truncated).max()
        allowed = self._tools.tolerance(first.weight, _CLOSE) * max(abs(truncated).max(), 1e-30)
        if not difference <= allowed:
            raise AlgorithmError(
                f"layer {layer.name!r}: the product of its factors differs from the truncated weight by "
                f"{difference:.3g}, expected at most {allowed:.3g}; factorize it in float32."
            )


def _figures(name: str, counts: tuple[int, int]) -> Figures:
    parameters, size = counts
    return Figures(name, parameters=parameters, bytes=size)


def _rank(parts: Any, config: dict[str, Any]) -> int:
    """Return the rank that a rule requests."""
    if config.get("rank") is not None:
        return min(int(config["rank"]), int(parts.full))
    if config.get("energy") is not None:
        return int(parts.rank_of_energy(config["energy"]))
    return int(parts.rank_of_parameters(config["parameters"]))
