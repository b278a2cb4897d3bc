"""AGPPruner: automated gradual pruning.

Zhu & Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression",
2017. Sparsity grows on a cubic curve, fast while weights are plenty and slowly towards the end::

    s_t = s_f + (s_i - s_f) * (1 - (t - t_0) / (n * dt)) ** 3

and the smallest weights are masked at each update. Here t counts epochs.

>>> import torch
>>> model = torch.nn.Linear(10, 10)
>>> rule = {"final_sparsity": 0.8, "end_epoch": 4, "frequency": 2}
>>> pruner = AGPPruner(model, [rule])
>>> model = pruner.compress()
>>> for epoch in (0, 2, 4):
...     pruner.update_epoch(epoch)
...     print(int((model.weight == 0).sum()))
0
70
80
"""

from __future__ import annotations

from typing import Any, ClassVar

from lilliput.config.spec import Rule, ScheduledPruneRule
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.namespace import Tensor
from lilliput.ops.schedule import cubic_sparsity
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import pruners, register_pruner


@register_pruner("agp", "AGPruner", "AGP_Pruner")
class AGPPruner(Pruner):
    """Prune more with every epoch, on the cubic schedule.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0. Weights once pruned stay
    pruned, and ``final_sparsity`` is met exactly.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``initial_sparsity``,
        ``final_sparsity``, ``start_epoch``, ``end_epoch`` and ``frequency``.
    pruning_algorithm : str
        The one-shot pruner whose scores rank the weights.
    """

    rule: ClassVar[type[Rule]] = ScheduledPruneRule
    tracked = ("now_epoch",)
    now_epoch: int = 0

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        pruning_algorithm: str = "level",
    ) -> None:
        super().__init__(model, config_list, optimizer)
        self.set_wrappers_attribute("reached_sparsity", 0.0)
        algorithm = pruners.get(pruning_algorithm)
        if not issubclass(algorithm, OneShotPruner):
            raise ConfigError(
                f"pruning_algorithm {pruning_algorithm!r} has no scores to rank weights by; "
                "expected a one-shot pruner such as 'level'."
            )
        self.masker = algorithm.masker_type(self.bound_model, self)

    def bind_model(self, model: Any) -> None:
        """Tell the masker the model, which may have come after it was made."""
        self.masker.model = model

    def update_epoch(self, epoch: int) -> None:
        """Move the schedule to an epoch; masks follow at once."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise AlgorithmError(f"update_epoch received {epoch!r}, expected an integer from 0.")
        self.now_epoch = epoch

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> dict[str, Tensor] | None:
        """Return a new mask when the schedule has moved on, None otherwise."""
        config = wrapper.config
        target = cubic_sparsity(
            self.now_epoch,
            config["initial_sparsity"],
            config["final_sparsity"],
            config["start_epoch"],
            config["end_epoch"],
            config["frequency"],
        )
        if target <= wrapper.reached_sparsity:
            return None
        wrapper.reached_sparsity = target
        masks: dict[str, Tensor] = self.masker.calc_mask(
            sparsity=target, wrapper=wrapper, wrapper_idx=wrapper_idx
        )
        return masks


AGPruner = AGP_Pruner = AGPPruner
