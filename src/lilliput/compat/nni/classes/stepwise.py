"""v3's ``AGPPruner(pruner, interval_steps, total_times)``: a schedule that counts training steps."""

from __future__ import annotations

from typing import Any

from lilliput.compat.nni.classes.third import ThirdStackPruner
from lilliput.compat.nni.config.rules import on_schedule
from lilliput.errors import ConfigError
from lilliput.pruning.scheduled import ScheduledPruner


class StepwisePruner(ThirdStackPruner, ScheduledPruner):
    """Prune more after every ``interval_steps`` training steps, ``total_times`` times in total.

    Parameters
    ----------
    pruner : Pruner
        A one-shot pruner of v3 with the final sparsities and the criterion.
    interval_steps, total_times : int
        When and how often.
    evaluator : Evaluator, optional
        Trains the model; by default the evaluator of the pruner.
    """

    def __init__(
        self, pruner: Any, interval_steps: int, total_times: int, evaluator: Any = None
    ) -> None:
        self.evaluator = pruner.evaluator if evaluator is None else evaluator
        if self.evaluator is None:
            raise ConfigError(
                f"{type(self).__name__}: a schedule of steps needs an evaluator, here or in its pruner."
            )
        self.interval_steps, self.total_times = interval_steps, total_times
        self.steps, self.others = 0, pruner.others
        pruner.strip()  # only its settings are used, it does not follow the training
        batches = getattr(pruner.masker, "training_batches", None)
        self.targets_by_rule = pruner.targets_by_rule
        if any(target is not None and target.threshold for target in self.targets_by_rule):
            raise ConfigError(
                f"{type(self).__name__}: a schedule moves 'sparse_ratio'; 'sparse_threshold' has none."
            )
        super(ThirdStackPruner, self).__init__(
            pruner.bound_model,
            on_schedule(pruner.config_list, total_times),
            self.evaluator.optimizer,
            pruning_algorithm=_with_masker(type(pruner).adapts, pruner.masker_type),
            pruning_params=None if batches is None else {"training_batches": batches},
        )

    def step(self) -> None:
        """Count the steps, and prune more after each interval."""
        self.steps += 1
        times, rest = divmod(self.steps, self.interval_steps)
        if rest == 0 and times <= self.total_times:
            self.update_epoch(times)

    def needs_training(self) -> bool:
        """Whether pruning happens in training; always."""
        return True

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Train with the evaluator while pruning; return the model and its masks."""
        if max_steps is None and max_epochs is None:
            max_steps = self.interval_steps * self.total_times
        self.train_together(max_steps, max_epochs)
        return self.bound_model, self.get_masks()


def _with_masker(cls: Any, masker_type: type) -> type:
    """Return an algorithm with the criterion that v3's rules have adapted."""
    if cls.masker_type is masker_type:
        return cls  # type: ignore[no-any-return]
    return type(cls.__name__, (cls,), {"masker_type": masker_type})
