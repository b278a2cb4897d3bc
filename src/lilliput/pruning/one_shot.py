"""Prune once, by score: the frame for algorithms that rank weights. Write ``score``, that is all.

>>> import torch
>>> class Squares(ScoreMasker):
...     def score(self, wrapper):
...         return wrapper.weight.detach() ** 2
>>> class SquarePruner(OneShotPruner):
...     masker_type = Squares
>>> model = SquarePruner(torch.nn.Linear(10, 10), [{"sparsity": 0.3}]).compress()
>>> int((model.weight == 0).sum())
30
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.spec import Fraction, PruneRule, Rule
from lilliput.core.masker import WeightMasker
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError
from lilliput.ops.masks import prune_count, prune_smallest, share_count
from lilliput.ops.namespace import Tensor, namespace


class OneShotRule(PruneRule):
    """A sparsity for each layer, or one for all the layers of the rule together."""

    total_sparsity: Fraction | None = Field(
        None, description="Share of the weights of all these layers together to remove."
    )
    max_sparsity_per_layer: Fraction | None = Field(
        None, description="With total_sparsity: the most to remove from any one layer."
    )

    @model_validator(mode="after")
    def _check_target(self) -> OneShotRule:
        given = [x for x in (self.sparsity, self.total_sparsity) if x is not None]
        if not self.exclude and len(given) != 1:
            raise ValueError(
                "expected either 'sparsity' (per layer) or 'total_sparsity' (of all layers together), "
                f"received {'both' if given else 'neither'}."
            )
        if self.max_sparsity_per_layer is not None and self.total_sparsity is None:
            raise ValueError(
                "'max_sparsity_per_layer' only limits 'total_sparsity', which is missing."
            )
        cap, total = self.max_sparsity_per_layer, self.total_sparsity
        if cap is not None and total is not None and cap < total:
            raise ValueError(
                f"'total_sparsity' {total} cannot be reached under 'max_sparsity_per_layer' {cap}."
            )
        return self


class ScoreMasker(WeightMasker):
    """Remove the weights with the smallest score: exactly the count asked for, ties by position."""

    def score(self, wrapper: Any) -> Tensor:
        """Return the importance of each weight of a layer; larger is kept."""
        raise NotImplementedError(f"{type(self).__name__} must override score().")

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Tensor]:
        """Return the mask that removes a share of a layer's weights."""
        score = self.rank(wrapper)
        count = prune_count(namespace(score).size(score), sparsity)
        return {"weight_mask": prune_smallest(score, count)}

    def rank(self, wrapper: Any) -> Tensor:
        """Return the scores, with what is pruned already below everything else."""
        score = self.score(wrapper)
        xp = namespace(score)
        if xp.any(xp.isnan(score)):
            raise AlgorithmError(
                f"layer {wrapper.name!r} has NaN among its scores, so nothing can be ranked; "
                "check the weights of this layer."
            )
        mask = wrapper.weight_mask
        if xp.count_nonzero(mask) < xp.size(mask):
            score = xp.where(mask == 0, -math.inf, score)
        return score


class OneShotPruner(Pruner):
    """Prune at ``compress()``, by the scores of ``masker_type``, and keep the masks from then on."""

    rule: ClassVar[type[Rule]] = OneShotRule
    masker_type: ClassVar[type[ScoreMasker]] = ScoreMasker

    def __init__(self, model: Any = None, config_list: Any = None, optimizer: Any = None) -> None:
        super().__init__(model, config_list, optimizer)
        self.set_wrappers_attribute("if_calculated", False)
        self.masker = self.masker_type(self.bound_model, self)

    def bind_model(self, model: Any) -> None:
        """Tell the masker the model, which may have come after it was made."""
        self.masker.model = model

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> dict[str, Tensor] | None:
        """Return the mask the first time, None afterwards."""
        if wrapper.if_calculated:
            return None
        wrapper.if_calculated = True
        sparsity = wrapper.config.get("sparsity")
        if sparsity is None:
            sparsity = self._share_of(wrapper)
        return self.masker.calc_mask(sparsity=sparsity, wrapper=wrapper, wrapper_idx=wrapper_idx)

    def _share_of(self, wrapper: Any) -> float:
        """Return a layer's part of a total sparsity, ranking the layers of its rule together."""
        if not hasattr(wrapper, "layer_sparsity"):
            config = wrapper.config
            group = [w for w in self.get_modules_wrapper() if w.config == config]
            scores = [self.masker.rank(w) for w in group]
            sizes = [namespace(score).size(score) for score in scores]
            cap = config.get("max_sparsity_per_layer")
            caps = [size if cap is None else prune_count(size, cap) for size in sizes]
            count = prune_count(sum(sizes), config["total_sparsity"])
            if sum(caps) < count:
                raise AlgorithmError(
                    f"total_sparsity {config['total_sparsity']} asks to remove {count} weights, and "
                    f"max_sparsity_per_layer {cap} allows {sum(caps)} in layers this small."
                )
            for w, size, share in zip(group, sizes, share_count(scores, count, caps), strict=True):
                w.layer_sparsity = share / size
        return float(wrapper.layer_sparsity)
