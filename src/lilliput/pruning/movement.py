"""MovementPruner: keep the weights that move away from zero during fine-tuning.

Sanh et al., "Movement pruning: adaptive sparsity by fine-tuning", 2020. Each weight has a score, which is
trained with the gradient of its mask::

    w' = w * m(s)        ds = dL/dw' * w        dw = dL/dw' * m(s)

So scores grow where the loss pushes a weight away from zero. ``'hard'`` keeps the weights with the largest
scores, as many as a cubic schedule allows; ``'soft'`` keeps those with ``sigmoid(s)`` above a threshold, and
a penalty on the mean of ``sigmoid(s)`` decides how many that are. Masked weights keep their raw values, and
may be unmasked again.

>>> import torch
>>> model = torch.nn.Linear(8, 4)
>>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
>>> pruner = MovementPruner(model, [{"sparsity": 0.75}], optimizer, 1, 4)
>>> model = pruner.compress()
>>> for _ in range(5):
...     optimizer.zero_grad()
...     model(torch.randn(16, 8)).square().sum().backward()
...     optimizer.step()
>>> int((pruner.strip().weight == 0).sum())
24
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from lilliput.config.select import Selection
from lilliput.config.spec import PatternRule, Rule
from lilliput.core.checks import checked_choice, checked_number
from lilliput.core.masker import Answers, Targets
from lilliput.errors import ConfigError, Problem, StageError
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.schedule import cubic_sparsity
from lilliput.pruning.granularity import (
    block_of,
    find_misfits,
    find_patterns,
    prune_pattern,
    spread_blocks,
    sum_blocks,
)
from lilliput.pruning.learning import LearningPruner, sigmoid
from lilliput.registry import register_pruner

log = logging.getLogger("lilliput")


class MovementRule(PatternRule):
    """The share of each layer's weights to remove, or in 'soft' mode the threshold of the scores.

    An N:M pattern implies the share.
    """

    @model_validator(mode="after")
    def _check_target(self) -> MovementRule:
        if not self.exclude and self.sparsity is None and self.pattern_sparsity is None:
            raise ValueError("'sparsity' is missing; expected a fraction in [0, 1).")
        return self


@register_pruner("movement")
class MovementPruner(LearningPruner):
    """Prune the weights that move towards zero during fine-tuning.

    The optimizer trains the scores along with the weights; masks are updated after each step, until
    ``harden()`` or ``strip()``.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. A rule has ``sparsity`` and optionally
        ``granularity``: blocks, which have one score each, or in mode 'hard' an N:M pattern. In mode 'soft',
        ``sparsity`` is the threshold of ``sigmoid(score)``, usually 0.1.
    warm_up_step : int
        Optimizer steps before anything is pruned.
    cool_down_beginning_step : int
        The step at which the sparsity (or threshold) stops growing; masks still change.
    movement_mode : {'hard', 'soft'}
        Whether to keep an exact share of each layer, or the weights with a score above the threshold.
    regular_scale : float
        Weight of the mean ``sigmoid(score)`` in the loss; 1 to 30 in mode 'soft', where a larger weight
        prunes more. It grows on the same schedule.
    score_scale : float
        How much faster scores move than weights (under Adam, exactly this factor). In mode 'hard' only
        their order matters.
    """

    paper = "Sanh et al. 2020, Movement pruning"

    rule: ClassVar[type[Rule]] = MovementRule
    learned_name = "movement_score"
    tracked = ("now_step",)
    now_step: int = 0

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        warm_up_step: int = 0,
        cool_down_beginning_step: int | None = None,
        *,
        movement_mode: Literal["hard", "soft"] = "hard",
        regular_scale: float = 0.0,
        score_scale: float = 1.0,
    ) -> None:
        _check_steps(warm_up_step, cool_down_beginning_step)
        checked_choice("movement_mode", movement_mode, ("hard", "soft"))
        self.regular_scale = checked_number(
            "regular_scale", regular_scale, "0 or more", lambda x: x >= 0
        )
        self.score_scale = checked_number(
            "score_scale", score_scale, "more than 0", lambda x: x > 0
        )
        self.warm_up_step = warm_up_step
        self.cool_down_beginning_step = int(cool_down_beginning_step or 0)
        self.movement_mode = movement_mode
        super().__init__(model, config_list, optimizer)

    def first_value(self, wrapper: Any) -> Tensor:
        """Return a score of zero for each weight or block."""
        weight, block = self._backend.value_of(wrapper.weight), block_of(wrapper.layer_info)
        xp = namespace(weight)
        weight = xp.detach(weight)
        units = weight if block is None else sum_blocks(weight, block, wrapper.layer_info)
        return xp.zeros_like(units)

    def compute_weight(self, wrapper: Any, weight: Tensor, mask: Tensor) -> Tensor:
        """Return the masked weight; the gradient of its mask goes to the scores."""
        xp = namespace(weight)
        score = xp.to_float(self.learned(wrapper), like=weight) * self.score_scale
        block = block_of(wrapper.layer_info)
        if block is not None:
            score = spread_blocks(score, block, wrapper.layer_info, xp.shape(weight))
        # The second term is zero, but has the gradient of a mask that equals the score.
        return weight * mask + (score - xp.detach(score)) * xp.detach(weight)

    def penalty(self, wrapper: Any, value: Tensor) -> Tensor:
        """Return the weighted mean of ``sigmoid(score)``."""
        share = self._backend.value_of(wrapper.regular_now)
        return namespace(value).mean(sigmoid(value * self.score_scale)) * share

    def penalizes(self) -> bool:
        """Whether scores are penalized."""
        return self.regular_scale > 0

    def growth(self, step: int) -> float:
        """Return the progress of the cubic schedule at a step, from 0 to 1."""
        return cubic_sparsity(step, 0.0, 1.0, self.warm_up_step, self.cool_down_beginning_step)

    def step(self) -> None:
        """Follow one training step; the schedule stops once all layers are hardened."""
        self.now_step += 1 if self.soft_wrappers() else 0

    def targets(self) -> Targets:
        """Return the layers that are still trained, with their current sparsity or threshold."""
        growth = self.growth(self.now_step)
        return [(w, w.config["sparsity"] * growth) for w in self.soft_wrappers()]

    def calc_masks(self, targets: Targets) -> Answers:
        """Return masks computed from the current scores."""
        for wrapper, target in targets:
            score = self.learned(wrapper)
            xp = namespace(score)
            score = self.ranked(wrapper, xp.widen(xp.detach(score)), "scores") * self.score_scale
            if target and xp.count_nonzero(score) == 0:
                self._check_trains(wrapper)
                target = 0.0  # scores that are all zero cannot be ranked yet
            block, pattern = block_of(wrapper.layer_info), wrapper.config.get("granularity")
            if isinstance(pattern, str):
                mask = prune_pattern(score, float(target or 0), pattern, wrapper.layer_info)
            elif self.movement_mode == "hard":
                mask = prune_smallest(score, prune_count(xp.size(score), float(target or 0)))
            else:
                mask = xp.to_float(sigmoid(score) > float(target or 0), like=score)
            if block is not None:
                mask = spread_blocks(mask, block, wrapper.layer_info, wrapper.layer_info.shape)
            yield wrapper, {"weight_mask": mask}

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; log a warning if the schedule is not complete."""
        if self.is_wrapped and self.is_behind:
            log.warning(
                "MovementPruner: stripped at step %d of %d, before the requested sparsity was reached; "
                "does it follow the training steps? Pass it the optimizer, or call step().",
                self.now_step,
                self.cool_down_beginning_step,
            )
        return super().strip()

    def _check_export(self) -> None:
        """Raise if the schedule is not complete."""
        if self.is_behind:
            raise StageError(
                f"MovementPruner: export_model() came at step {self.now_step} of "
                f"{self.cool_down_beginning_step}, so the file would have fewer zeros than requested; "
                "continue training first, or strip() and save the model itself."
            )

    @property
    def is_behind(self) -> bool:
        """Whether the requested sparsity (or threshold) has not been reached."""
        return self.now_step < self.cool_down_beginning_step

    # -- internals ---------------------------------------------------------------------------------

    def _check_trains(self, wrapper: Any) -> None:
        """Raise if the scores of a layer are all zero and cannot change any more.

        With a learning rate that starts at zero, they do not move in the first steps.
        """
        if self.optimizer is None or not self.is_behind:
            raise StageError(
                f"layer {wrapper.name!r}: its scores have not been trained, so nothing can be ranked; pass "
                "the model's optimizer to MovementPruner, and exclude layers that do not contribute to the "
                "loss."
            )

    def update_mask(self) -> None:
        """Update the masks, and the weight of the penalty with them."""
        super().update_mask()
        self._set_penalty()

    def _prepare(self) -> None:
        for wrapper in self.get_modules_wrapper():
            if "regular_now" not in wrapper.tensors():
                wrapper.set_attribute("regular_now", self._backend.tensor(0.0, wrapper))
        super()._prepare()

    def _set_penalty(self) -> None:
        """Set the weight of each layer's mean score in the penalty, equal for all layers."""
        wrappers = self.get_modules_wrapper()
        share = self.regular_scale * self.growth(self.now_step) / max(len(wrappers), 1)
        for wrapper in wrappers if self.penalizes() else ():
            wrapper.set_attribute("regular_now", self._backend.tensor(share, wrapper))

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return patterns that do not fit, or that a threshold cannot produce."""
        why = "movement_mode='soft' keeps weights whose score is above a threshold; choose 'hard'"
        found = find_patterns(selection, why) if self.movement_mode == "soft" else []
        return [*super()._find_problems(selection), *found, *find_misfits(selection)]


def _check_steps(warm_up: Any, cool_down: Any) -> None:
    for name, value in (("warm_up_step", warm_up), ("cool_down_beginning_step", cool_down)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name}: received {value!r}, expected a number of optimizer steps.")
    if warm_up >= cool_down:
        raise ConfigError(
            f"warm_up_step: received {warm_up}, expected less than cool_down_beginning_step "
            f"{cool_down}: sparsity grows between the two."
        )
