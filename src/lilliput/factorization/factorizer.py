"""Replace a layer with two smaller ones: the frame for algorithms that do so. Write ``factors``, that is all.

>>> import numpy as np, torch
>>> class AveragingFactorizer(Factorizer):
...     def factors(self, weight, rank):
...         groups = np.array_split(np.arange(len(weight)), rank)
...         rows = [weight[group].mean(0) for group in groups]
...         left = np.repeat(np.eye(rank), [len(group) for group in groups], axis=0)
...         return left, np.stack(rows)
>>> model = torch.nn.Sequential(torch.nn.Linear(16, 8))
>>> AveragingFactorizer(model, [{"rank": 2}]).compress()
Sequential(
  (0): Sequential(
    (0): Linear(in_features=16, out_features=2, bias=False)
    (1): Linear(in_features=2, out_features=8, bias=True)
  )
)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.config.spec import Count, Rule
from lilliput.core.binding import select_layers
from lilliput.core.compressor import Compressor
from lilliput.errors import AlgorithmError, Problem, StageError
from lilliput.frameworks import backend_of
from lilliput.measure.receipt import Figures, Receipt
from lilliput.ops.namespace import namespace

log = logging.getLogger("lilliput")

Array = Any
_CLOSE = 1e-4  # of the largest weight: how far the layers may be from the factors


class RankRule(Rule):
    """How large a rank to keep."""

    rank: Count | None = Field(None, description="Outputs of the first of the two layers.")

    @model_validator(mode="after")
    def _check_rank(self) -> RankRule:
        if not self.exclude and self.rank is None:
            raise ValueError("expected 'rank', the outputs of the first of the two layers.")
        return self


@dataclass(frozen=True)
class Factorization:
    """What became of each layer; ``print`` it.

    Attributes
    ----------
    ranks : dict
        The rank of each layer that was replaced.
    energies : dict
        The share of its squared weights that this keeps.
    left : dict
        Layers that stay as they are, and why.
    receipt : Receipt
        Parameters and bytes before and after.
    """

    ranks: dict[str, int] = field(default_factory=dict)
    energies: dict[str, float] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    receipt: Any = None

    def config_list(self) -> list[dict[str, Any]]:
        """Return rules that give a new model of the original class the same layers.

        Pass them to ``lay_out()`` with a new model, and load the state dict of the factorized one into it.
        The list is empty if no layer was replaced, and ``lay_out()`` then changes nothing.
        """
        return [{"op_names": [name], "rank": rank} for name, rank in self.ranks.items()]

    def why_left(self) -> str:
        """Return the reasons why layers were kept, in one line."""
        return "; ".join(f"{name}: {why}" for name, why in self.left.items())

    def __str__(self) -> str:
        width = max(map(len, self.ranks), default=0)
        lines = [f"{len(self.ranks)} layers became two each:"]
        for name, rank in self.ranks.items():
            energy = self.energies.get(name)
            kept = "" if energy is None else f", keeps {energy:.1%} of its squared weights"
            lines.append(f"  {name:<{width}}  rank {rank}{kept}")
        lines += [f"  {name}: left as it is, {why}" for name, why in self.left.items()]
        return "\n".join([*lines, str(self.receipt)])


class Factorizer(Compressor):
    """Replace each selected layer with two smaller ones.

    Subclasses override :meth:`factors`, and :meth:`rank_of` if their rules specify the rank in other ways.
    A layer is kept, with the reason in ``result.left``, if two layers would not have fewer weights or
    cannot replace it: grouped convolutions, tied weights, subclasses of these layers. Make the optimizer
    afterwards: the parameters are new ones. ``strip()`` has nothing to do, and there is no ``state()``:
    ``lay_out()`` with ``result.config_list()`` creates the same layers in a new model, so that the state
    dict can be loaded.

    Parameters
    ----------
    model : torch.nn.Module
        The model; its layers are replaced in place.
    config_list : list of dict, or path of a YAML or JSON file
        Rules select ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d``, and hold ``rank``.

    Attributes
    ----------
    result : Factorization
        Ranks, energies and the receipt, after ``compress()``.
    """

    kind: ClassVar[str] = "factorizer"
    rule: ClassVar[type[Rule]] = RankRule
    backends: ClassVar[tuple[str, ...]] = ("torch",)
    default_types: ClassVar[frozenset[str] | None] = frozenset(
        {"Conv1d", "Conv2d", "Conv3d", "Linear"}
    )

    result: Factorization | None = None
    _has_no_rules: bool = False
    is_laying_out: bool = False  # whether only ranks are asked for, and no factors

    def __init__(self, model: Any = None, config_list: Any = None) -> None:
        # No rules are those of a model in which nothing was replaced: for lay_out(), and an error otherwise.
        self._has_no_rules = isinstance(config_list, (list, tuple)) and not config_list
        super().__init__(None if self._has_no_rules else model, config_list)
        self.bound_model = model

    # -- what authors override -----------------------------------------------------------------------

    def rank_of(self, weight: Array, config: Mapping[str, Any]) -> int:
        """Return the rank that a rule asks for, 0 to leave the layer as it is.

        Parameters
        ----------
        weight : numpy.ndarray
            The weight of the layer, as (outputs, everything else).
        config : mapping
            The rule that took the layer.
        """
        return int(min(config.get("rank") or 0, *weight.shape))

    def factors(self, weight: Array, rank: int) -> tuple[Array, Array]:
        """Return (outputs, rank) and (rank, inputs), whose product takes the place of a weight."""
        raise NotImplementedError(f"{type(self).__name__} must override factors().")

    # -- the journey ---------------------------------------------------------------------------------

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
        receipt = Receipt(_figures("original", before), _figures("factorized", after))
        self.result = Factorization(**found, receipt=receipt)
        if self.result.left and not pairs:
            log.warning("%s: no layer was replaced. %s.", self._title, self.result.why_left())
        self._has_compressed = True
        return self.bound_model

    def lay_out(self, model: Any = None) -> Any:
        """Insert layers of the same shapes with zero weights, into which a state dict can be loaded.

        Nothing is computed but the ranks.
        """
        self.is_laying_out = True
        try:
            return self.compress(model)
        finally:
            self.is_laying_out = False

    def strip(self) -> Any:
        """Return the model, which is a plain one already."""
        return self.bound_model

    def state(self) -> Any:
        """Refuse: there is nothing but the model, whose state dict is what to save."""
        raise StageError(
            f"{self._title} has no state besides the model: save its state dict, and load it into a new "
            f"model with the same layers: {self._title}(new_model, result.config_list()).lay_out()."
        )

    # -- the engine room -----------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        return type(self).__name__

    @property
    def _tools(self) -> Any:
        return self._backend.factoring()

    def _bind(self) -> None:
        """Check the config against the model; there are no wrappers to make."""
        self._backend = backend_of(self.bound_model)
        is_nothing = self._has_no_rules and self.is_laying_out
        self._selection = Selection((), ()) if is_nothing else select_layers(self, self._backend)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        chosen = [decision for decision in selection.decisions if decision.is_chosen]
        references = self._tools.references_in(self.bound_model)
        return [
            Problem(f"rule {decision.rule}", f"layer {decision.layer.name!r} {why}.")
            for decision in chosen
            if (why := self._tools.problem_of(self.bound_model, decision.layer, references))
        ]

    def _factorize(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the pairs of layers to put in, and what there is to say of them."""
        pairs, ranks, energies, left = [], {}, {}, {}
        for layer in self.selection.chosen:
            obstacle = self._tools.obstacle_of(self.bound_model, layer)
            if obstacle:
                left[layer.name] = obstacle
                continue
            weight = _matrix(layer)
            rank = self.rank_of(weight, layer.config)
            outputs, inputs = weight.shape
            if not rank or rank * (outputs + inputs) >= outputs * inputs:
                left[layer.name] = f"two layers of rank {rank or 1} would not be smaller"
                continue
            factors = self._factors(layer, weight, rank)
            first, second = self._tools.two_layers(layer, *factors)
            pairs.append((layer, first, second))
            if not self.is_laying_out:
                product = factors[0] @ factors[1]
                self._verify(layer, product, first, second)
                energies[layer.name] = _energy(weight, product)
            ranks[layer.name] = rank
        return pairs, {"ranks": ranks, "energies": energies, "left": left}

    def _factors(self, layer: LayerInfo, weight: Array, rank: int) -> tuple[Array, Array]:
        """Return the factors of a weight, of the shapes that they must have."""
        import numpy as np  # here: it is not needed to import Lilliput

        shapes = [(len(weight), rank), (rank, weight.shape[1])]
        if self.is_laying_out:
            return np.zeros(shapes[0], weight.dtype), np.zeros(shapes[1], weight.dtype)
        left, right = self.factors(weight, rank)
        received = [tuple(np.shape(x)) for x in (left, right)]
        if received != shapes:
            raise AlgorithmError(
                f"{self._title}.factors returned the shapes {received} for layer {layer.name!r} and rank "
                f"{rank}, expected {shapes}."
            )
        return left, right

    def _verify(self, layer: LayerInfo, product: Array, first: Any, second: Any) -> None:
        """Raise unless the two layers multiply to the product of the factors."""
        matrices = []
        for made in (first, second):
            array = namespace(made.weight).to_numpy(made.weight)
            matrices.append(array.reshape(len(array), -1))
        difference = abs(matrices[1] @ matrices[0] - product).max()
        allowed = self._tools.tolerance(first.weight, _CLOSE) * max(abs(product).max(), 1e-30)
        if not difference <= allowed:
            raise AlgorithmError(
                f"layer {layer.name!r}: the product of its factors differs from the truncated weight by "
                f"{difference:.3g}, expected at most {allowed:.3g}; factorize it in float32."
            )


def _matrix(layer: LayerInfo) -> Array:
    """Return the weight of a layer as (outputs, everything else)."""
    weight = getattr(layer.module, str(layer.weight_name))
    array = namespace(weight).to_numpy(weight)
    if not (abs(array) < float("inf")).all():
        raise AlgorithmError(f"layer {layer.name!r} has NaN or infinity among its weights.")
    return array.reshape(len(array), -1)


def _energy(weight: Array, product: Array) -> float:
    """Return the share of the squared weights that a product keeps."""
    total = float((weight.astype(float) ** 2).sum())
    lost = float(((weight.astype(float) - product) ** 2).sum())
    return 1.0 - lost / total if total else 1.0


def _figures(name: str, counts: tuple[int, int]) -> Figures:
    parameters, size = counts
    return Figures(name, parameters=parameters, bytes=size)
