"""Pruners that increase the sparsity with every epoch: any schedule, any criterion."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from lilliput.config.select import Selection
from lilliput.config.spec import Rule, ScheduledPruneRule
from lilliput.core.masker import Targets
from lilliput.errors import Problem, StageError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.criterion import checked_epoch
from lilliput.pruning.named import NamedCriterionPruner
from lilliput.pruning.one_shot import check_caps, layer_shares, ranked_together

log = logging.getLogger("lilliput")


def final_sparsity(config: Mapping[str, Any]) -> float:
    """Return the sparsity at the end of a schedule: of a layer, or of all layers of its rule together."""
    return float(config.get("total_sparsity", config.get("final_sparsity")))


def _has_zeros(mask: Tensor) -> bool:
    xp = namespace(mask)
    return bool(xp.count_nonzero(mask) < xp.size(mask))


class ScheduledPruner(NamedCriterionPruner):
    """Move each layer's sparsity along a schedule; pruned weights stay pruned.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``initial_sparsity``,
        ``final_sparsity``, ``start_epoch``, ``end_epoch`` and ``frequency``. With ``total_sparsity`` in
        place of ``final_sparsity``, both sparsities are those of all the rule's layers together.
    pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.named.NamedCriterionPruner`.
    """

    rule: ClassVar[type[Rule]] = ScheduledPruneRule
    schedule: ClassVar[Callable[..., float]]
    tracked = ("now_epoch",)
    now_epoch: int = 0

    def update_epoch(self, epoch: int) -> None:
        """Move the schedule to an epoch and update the masks."""
        self.now_epoch = checked_epoch(epoch)
        if self.is_wrapped and self.masker is not None:
            self.masker.check_progress()
        for wrapper in self.get_modules_wrapper():
            wrapper.updated_epoch = -1

    def targets(self) -> Targets:
        """Return the layers whose schedule requests more zeros than they have, once per epoch."""
        return self._due(self._unmasked())

    def target_sparsity(self, wrapper: Any, epoch: int) -> float:
        """Return the sparsity of a layer in an epoch, by the schedule of its rule."""
        config = wrapper.config
        return type(self).schedule(
            epoch,
            config["initial_sparsity"],
            final_sparsity(config),
            config["start_epoch"],
            config["end_epoch"],
            config["frequency"],
        )

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; log a warning if the schedule is not complete."""
        behind = [
            wrapper.name
            for wrapper in self.get_modules_wrapper()
            if self.target_sparsity(wrapper, self.now_epoch) < final_sparsity(wrapper.config)
            or (wrapper.updated_epoch != self.now_epoch and not self._can_ask(wrapper))
        ]
        if behind and self.is_wrapped:
            why = self.masker.what_is_missing()
            log.warning(
                "%s: stripped at epoch %d, before the final sparsity was reached in %d layers; %s",
                type(self).__name__,
                self.now_epoch,
                len(behind),
                f"{why}." if why else "is update_epoch(epoch) called in every epoch?",
            )
        return super().strip()

    def _check_export(self) -> None:
        """Raise if zeros are due and there are none yet."""
        missing = self.masker.what_is_missing()
        wrappers = self.get_modules_wrapper() if missing else []
        targets = [self.target_sparsity(wrapper, self.now_epoch) for wrapper in wrappers]
        if any(targets) and not any(_has_zeros(wrapper.weight_mask) for wrapper in wrappers):
            raise StageError(
                f"{type(self).__name__}: export_model() came before the first masks were calculated, so the "
                f"file would contain only ones: {missing}. Continue training first, or strip() and save the "
                "model itself."
            )

    def _due(self, wrappers: Sequence[Any]) -> list[tuple[Any, float | None]]:
        """Return those of some layers that have fewer zeros than requested, with their sparsity."""
        asked = self._with_sparsity([w for w in wrappers if self._can_ask(w)])
        return [(w, target) for w, target in asked if not self.masker.is_met(w, target)]

    def _with_sparsity(self, wrappers: Sequence[Any]) -> list[tuple[Any, float]]:
        """Return layers with their sparsity in this epoch: that of their rule, or their share of a total."""
        found: dict[Any, float] = {}
        wanted = set(wrappers)
        for group in ranked_together(self.get_modules_wrapper()):
            if wanted.isdisjoint(group):
                continue
            target = self.target_sparsity(group[0], self.now_epoch)
            is_total = target > 0 and "total_sparsity" in group[0].config
            shares = layer_shares(self.masker, group, target) if is_total else [target] * len(group)
            found |= zip(group, shares, strict=True)
        return [(wrapper, found[wrapper]) for wrapper in wrappers]

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return rules with a total sparsity whose layers this criterion cannot rank together."""
        if self.removes_channels:
            why = "a schedule ranks single weights across layers, not channels"
        elif not hasattr(self.masker_type, "rank"):
            why = f"{self.masker_type.__name__} has no scores to rank weights by"
        else:
            return super()._find_problems(selection)
        problems = [
            Problem(
                f"rule {decision.rule} → total_sparsity", f"{why}; give 'sparsity', for each layer."
            )
            for decision in selection.decisions
            if decision.is_chosen and "total_sparsity" in decision.layer.config
        ]
        return [*super()._find_problems(selection), *dict.fromkeys(problems)]

    def _prepare(self) -> None:
        super()._prepare()
        for group in ranked_together(self.get_modules_wrapper()):
            if (
                "total_sparsity" in group[0].config
            ):  # may be impossible, which shows only at the end
                check_caps(group, final_sparsity(group[0].config))

    def _bind(self) -> None:
        super()._bind()
        self.set_wrappers_attribute("updated_epoch", -1)

    def _is_due(self) -> bool:
        return bool(self._unmasked())

    def _unmasked(self) -> list[Any]:
        """Return the layers that have not been updated in this epoch."""
        return [w for w in self.get_modules_wrapper() if w.updated_epoch != self.now_epoch]

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        for wrapper in wrappers:
            if self._can_ask(wrapper):
                wrapper.updated_epoch = self.now_epoch

    def _follow_up(self, has_masks: bool) -> None:
        if has_masks:
            self.masker.start_over()

    def _can_ask(self, wrapper: Any) -> bool:
        """Whether the criterion is ready, or not needed in this epoch."""
        return self.target_sparsity(wrapper, self.now_epoch) == 0 or self.masker.is_ready()
