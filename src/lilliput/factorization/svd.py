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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.spec import Fraction, Rule
from lilliput.factorization.factorizer import Array, Factorizer, RankRule
from lilliput.registry import register_factorizer

if TYPE_CHECKING:
    from lilliput.ops.low_rank import Decomposition


class SVDRule(RankRule):
    """The rank to keep: a number, or the largest share of weights or the smallest share of energy."""

    energy: Fraction | None = Field(
        None, description="Share of the squared weights to keep at least: 0.9 keeps the main part."
    )
    parameters: Fraction | None = Field(
        None, description="Share of the layer's weights that the two layers may have at most."
    )

    @model_validator(mode="after")
    def _check_rank(self) -> SVDRule:
        given = [k for k in ("rank", "energy", "parameters") if getattr(self, k) is not None]
        if not self.exclude and len(given) != 1:
            raise ValueError(
                f"expected one of 'rank', 'energy' and 'parameters', received {given or 'none'}."
            )
        return self


@register_factorizer("svd")
class SVDFactorizer(Factorizer):
    """Replace each layer with two smaller ones, by singular value decomposition.

    See :class:`~lilliput.factorization.factorizer.Factorizer` for what is replaced, and how such a model is
    saved and loaded.

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

    rule: ClassVar[type[Rule]] = SVDRule
    paper = "Denton et al. 2014, Exploiting linear structure within convolutional networks"

    _last: Decomposition | None = None  # of the weight that was asked about last

    def rank_of(self, weight: Array, config: Mapping[str, Any]) -> int:
        """Return the rank that a rule asks for; only ``energy`` needs the singular values."""
        parts = self._decomposition(weight)
        if config.get("energy") is not None:
            return parts.rank_of_energy(config["energy"])
        if config.get("parameters") is not None:
            return parts.rank_of_parameters(config["parameters"])
        return super().rank_of(weight, config)

    def factors(self, weight: Array, rank: int) -> tuple[Array, Array]:
        """Return the factors of the nearest matrix of that rank."""
        return self._decomposition(weight).factors(rank)

    def _decomposition(self, weight: Array) -> Decomposition:
        from lilliput.ops.low_rank import Decomposition  # here: importing Lilliput is to be quick

        if self._last is None or self._last.matrix is not weight:
            self._last = Decomposition(weight, has_vectors=not self.is_laying_out)
        return self._last
