"""Prune once, by score: the base of algorithms that rank weights. Subclasses only implement ``score``.

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

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import model_validator

from lilliput.config.select import Selection
from lilliput.config.spec import PatternRule, Rule, TotalKeys
from lilliput.core.masker import Targets, WeightMasker
from lilliput.errors import AlgorithmError, Problem, StageError
from lilliput.ops.masks import prune_count, prune_smallest, share_count
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.criterion import CriterionPruner, check_scores
from lilliput.pruning.granularity import find_misfits, prune_pattern

log = logging.getLogger("lilliput")


class OneShotRule(PatternRule, TotalKeys):
    """A sparsity for each layer, or one for all layers of the rule."""

    @model_validator(mode="after")
    def _check_target(self) -> OneShotRule:
        given = (self.sparsity, self.total_sparsity, self.pattern_sparsity)
        if not self.exclude and given == (None, None, None):
            raise ValueError(
                "expected either 'sparsity' (per layer) or 'total_sparsity' (of all layers together), "
                "received neither."
            )
        return self


class ScoreMasker(WeightMasker):
    """Remove the weights with the smallest score: exactly the requested count, ties by position."""

    keys = frozenset({"granularity"})

    def score(self, wrapper: Any) -> Tensor:
        """Return the importance of each weight of a layer; larger is kept."""
        raise NotImplementedError(f"{type(self).__name__} must override score().")

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Tensor]:
        """Return the mask that removes a share of a layer's weights."""
        score = self.rank(wrapper)
        granularity = wrapper.config.get("granularity")
        if granularity is not None:
            return {"weight_mask": prune_pattern(score, sparsity, granularity, wrapper.layer_info)}
        count = prune_count(namespace(score).size(score), sparsity)
        return {"weight_mask": prune_smallest(score, count)}

    def rank(self, wrapper: Any) -> Tensor:
        """Return the scores, with pruned weights ranked below all others."""
        score = self.score(wrapper)
        xp = namespace(score)
        check_scores(score, wrapper.name)
        mask = wrapper.weight_mask
        is_held = not getattr(wrapper, "is_soft", False)  # else pruned weights may regrow
        if is_held and xp.count_nonzero(mask) < xp.size(mask):
            score = xp.where(mask == 0, -math.inf, score)
        return score

    @classmethod
    def find_problems(cls, selection: Selection) -> list[Problem]:
        """Return a problem for each layer whose size is not a multiple of its pattern."""
        return find_misfits(selection)


def ranked_together(wrappers: Iterable[Any]) -> list[list[Any]]:
    """Return the layers of each rule with a total sparsity as one list, and all others one by one."""
    found: list[list[Any]] = []
    totals: list[list[Any]] = []
    for wrapper in wrappers:
        is_total = "total_sparsity" in wrapper.config
        known = (
            next((x for x in totals if x[0].config == wrapper.config), None) if is_total else None
        )
        if known is not None:
            known.append(wrapper)
            continue
        found.append([wrapper])
        if is_total:
            totals.append(found[-1])
    return found


def layer_shares(masker: Any, wrappers: Sequence[Any], sparsity: float) -> list[float]:
    """Return the sparsity of each layer of a rule, if their weights are ranked together."""
    caps = check_caps(wrappers, sparsity)
    scores = [masker.rank(wrapper) for wrapper in wrappers]
    sizes = [namespace(score).size(score) for score in scores]
    shares = share_count(scores, prune_count(sum(sizes), sparsity), caps)
    return [share / size for share, size in zip(shares, sizes, strict=True)]


def check_caps(wrappers: Sequence[Any], sparsity: float) -> list[int]:
    """Return how many weights each layer of a rule may lose; raise if that is too few for the sparsity."""
    sizes = [namespace(wrapper.weight_mask).size(wrapper.weight_mask) for wrapper in wrappers]
    cap = wrappers[0].config.get("max_sparsity_per_layer")
    caps = [size if cap is None else prune_count(size, cap) for size in sizes]
    count = prune_count(sum(sizes), sparsity)
    if sum(caps) < count:
        raise AlgorithmError(
            f"total_sparsity {sparsity} requests the removal of {count} weights, but "
            f"max_sparsity_per_layer {cap} allows {sum(caps)} in layers this small."
        )
    return caps


class OneShotPruner(CriterionPruner):
    """Prune at ``compress()``, by the scores of ``masker_type``, and keep the masks from then on.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, groups, masker_type, options
        See :class:`~lilliput.pruning.criterion.CriterionPruner`.
    """

    rule: ClassVar[type[Rule]] = OneShotRule
    masker_type: type[WeightMasker] = ScoreMasker
    needs_optimizer: ClassVar[bool] = False  # until the masks have been computed

    def targets(self) -> Targets:
        """Return the layers without a mask; none before the criterion is ready."""
        if not self.masker.is_ready():
            return []
        return [
            (wrapper, self._sparsity_of(wrapper))
            for wrapper in self.get_modules_wrapper()
            if not wrapper.if_calculated
        ]

    def step(self) -> None:
        """Follow one training step; raise if the algorithm cannot use it."""
        self._check_optimizer()

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; log a warning if the masks were never computed."""
        missing = self._missing()
        if self.is_wrapped and missing:
            log.warning(
                "%s: stripped before its masks were calculated, so nothing was pruned: %s.",
                type(self).__name__,
                missing,
            )
        return super().strip()

    def _check_export(self) -> None:
        """Raise while the masks are missing."""
        missing = self._missing()
        if missing:
            raise StageError(
                f"{type(self).__name__}: export_model() came before the masks were calculated, so the file "
                f"would contain only ones: {missing}. Continue training first, or strip() and save the model "
                "itself."
            )

    def _bind(self) -> None:
        super()._bind()
        self.set_wrappers_attribute("if_calculated", False)
        self.set_wrappers_attribute("layer_sparsity", None)  # a layer's share of a total sparsity

    def _is_due(self) -> bool:
        return self._needs_criterion() and bool(self.masker.is_ready())

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        if self.masker.is_ready():
            for wrapper in wrappers:
                wrapper.if_calculated = True

    def _follow_up(self, has_masks: bool) -> None:
        self._stop_if_done()

    def _take_state(self) -> None:
        super()._take_state()
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        """Stop observing once all masks have been computed."""
        if self.masker is not None and not self._needs_criterion():
            self.masker.stop()

    def _missing(self) -> str:
        if self.masker is None or not self._needs_criterion():
            return ""
        return str(self.masker.what_is_missing())

    def _check_optimizer(self) -> None:
        # Checked here and not in the constructor, because a recipe binds the optimizer later.
        is_alone = self.needs_optimizer and self.is_wrapped and self.optimizer is None
        if is_alone and (missing := self._missing()):
            raise StageError(
                f"{type(self).__name__} works through the optimizer, but has none while {missing}; pass the "
                "model's optimizer, or call bind_optimizer(optimizer)."
            )

    def _follow_optimizer(self) -> None:
        if self.needs_optimizer and self._needs_criterion() and self._missing():
            self._check_reach()
        super()._follow_optimizer()

    def _needs_criterion(self) -> bool:
        wrappers = self.get_modules_wrapper()
        return not all(getattr(wrapper, "if_calculated", False) for wrapper in wrappers)

    def _sparsity_of(self, wrapper: Any) -> float | None:
        sparsity: float | None = wrapper.config.get("sparsity")
        if sparsity is None and not self.removes_channels:
            return self._share_of(wrapper)
        return sparsity

    def _share_of(self, wrapper: Any) -> float:
        """Return a layer's share of a total sparsity, ranking the layers of its rule together."""
        if wrapper.layer_sparsity is None:
            groups = ranked_together(self.get_modules_wrapper())
            group = next(group for group in groups if wrapper in group)
            total = wrapper.config["total_sparsity"]
            for w, share in zip(group, layer_shares(self.masker, group, total), strict=True):
                w.layer_sparsity = share
        return float(wrapper.layer_sparsity)
