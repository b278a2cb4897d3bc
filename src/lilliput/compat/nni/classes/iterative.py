"""The second stack's ``AGPPruner`` and ``LinearPruner``, which run all their iterations in ``compress()``."""

from __future__ import annotations

from typing import Any

from lilliput.compat.nni.classes.cutting import CutsInTheEnd
from lilliput.compat.nni.classes.training import call_trainer, training_mode
from lilliput.errors import ConfigError, StageError
from lilliput.pruning.collecting import CollectingMasker
from lilliput.pruning.scheduled import ScheduledPruner

_OF_CRITERION = ("training_batches", "activation", "training_epochs", "scale")
_RENAMED = {"training_steps": "training_batches", "traced_optimizer": "optimizer"}


class IterativePruner(CutsInTheEnd, ScheduledPruner):
    """Prune a little more in each of ``total_iteration + 1`` iterations, and fine-tune after each.

    The first iteration has a sparsity of zero. With ``speedup``, masked channels are cut out in the last
    one, before fine-tuning.
    """

    collects_by: Any = None  # the evaluator or trainer that runs batches for the criterion

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        evaluator = given.get("evaluator")
        self._take_cutting(given, evaluator)
        params = given.pop("pruning_params", None) or {}
        params = {_RENAMED.get(key, key): value for key, value in dict(params).items()}
        if evaluator is not None and not hasattr(evaluator, "train"):
            given["evaluator"] = None  # before 2.9 a scoring function, which is never called
        self.collects_by = params.pop("evaluator", None) or params.pop("trainer", None)
        self.criterion = params.pop("criterion", None)
        criterion = self.criterion
        optimizer = params.pop("optimizer", None) or getattr(self.collects_by, "optimizer", None)
        self._set_mode(params.pop("mode", None), params.pop("dummy_input", None), given)
        unknown = [key for key in params if key not in _OF_CRITERION]
        if unknown:
            raise ConfigError(
                f"{type(self).__name__}: pruning_params: received {unknown[0]!r}, expected some of "
                f"{', '.join(_OF_CRITERION)}, mode, and what trains."
            )
        translated = super()._translated(given)
        self.criterion = criterion
        if params:
            translated["pruning_params"] = params
        if optimizer is not None:
            translated["optimizer"] = optimizer
        return translated

    def _set_mode(self, mode: Any, inputs: Any, given: dict[str, Any]) -> None:
        if mode == "dependency_aware":
            given["mode"], given["dummy_input"] = mode, inputs
        elif mode not in (None, "normal"):
            raise ConfigError(
                f"{type(self).__name__}: pruning_params: mode {mode!r} is not available on a schedule."
            )

    def compress(self, *args: Any, **kwargs: Any) -> Any:
        """Run all iterations; return the model and its masks, which are empty if they are cut out."""
        self.attach(*args, **kwargs)
        for iteration in range(self.iterations + 1 if self.iterations else 0):
            self.update_epoch(iteration)
            with training_mode(self.bound_model):
                self._show_batches()
            if self.cuts and iteration == self.iterations:
                self._cut_out()
            with training_mode(self.bound_model):
                self._train_once(iteration)
        return self.bound_model, self.get_masks()

    def _show_batches(self) -> None:
        """Train until the criterion has seen its batches, if it needs any."""
        asked = any(self.target_sparsity(w, self.now_epoch) > 0 for w in self.get_modules_wrapper())
        if not asked or not isinstance(self.masker, CollectingMasker) or self.masker.is_ready():
            return
        trainer = self.collects_by or self.evaluator
        if trainer is None:
            raise StageError(
                f"{type(self).__name__}: its criterion needs batches; pass pruning_params={{'evaluator': "
                "evaluator, 'training_steps': 20}}."
            )
        if hasattr(trainer, "train"):
            with trainer.serving(self):
                trainer.train(self.bound_model, self.masker.training_batches, None)
        else:
            call_trainer(trainer, self.bound_model, self.optimizer, self.criterion, 0)
        if any(w.updated_epoch != self.now_epoch for w in self.get_modules_wrapper()):
            self.finish_collecting()
