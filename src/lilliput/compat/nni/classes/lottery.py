"""NNI's ``LotteryTicketPruner``: rounds started by the user (v1), or run in ``compress()`` (v2)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner
from lilliput.compat.nni.classes.iterative import IterativePruner
from lilliput.pruning.lottery import LotteryTicketPruner


class RoundsByHand(AdaptedPruner, LotteryTicketPruner):
    """``prune_iteration_start()`` at the start of each of ``get_prune_iterations()``."""

    lr_scheduler: Any = None
    _first_rate: Any = None
    _round: int = -1

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        self.lr_scheduler = given.pop("lr_scheduler", None)
        if self.lr_scheduler is not None:
            self._first_rate = copy.deepcopy(self.lr_scheduler.state_dict())
        resets = given.pop("reset_weights", True)
        return {**super()._translated(given), "reset_weights": bool(resets)}

    def _scheduled(self, rules: Any, given: dict[str, Any]) -> Any:
        return rules

    def get_prune_iterations(self) -> Iterable[int]:
        """Return the numbers of the rounds: one without pruning, and those of the config."""
        return range(self.rounds + 1)

    def prune_iteration_start(self) -> None:
        """Prune by the weights that the last round has trained, and rewind weights and learning rate."""
        self._round += 1
        self.update_epoch(self._round)
        if self._round and self.reset_weights and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(copy.deepcopy(self._first_rate))


class RoundsInside(IterativePruner, LotteryTicketPruner):
    """``total_iteration`` rounds in ``compress()``, each trained by a finetuner or an evaluator."""

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        resets = given.pop("reset_weight", True)
        return {**super()._translated(given), "reset_weights": bool(resets)}

    def _scheduled(self, rules: Any, given: dict[str, Any]) -> Any:
        self.iterations = given.pop("total_iteration", None) or 0
        known = [dict(rule) if isinstance(rule, dict) else rule for rule in rules or ()]
        for rule in known:
            if isinstance(rule, dict) and not rule.get("exclude") and self.iterations:
                rule["prune_iterations"] = self.iterations
        return known
