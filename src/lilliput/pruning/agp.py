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

import logging
from numbers import Integral
from typing import Any, ClassVar

from lilliput.config.spec import Rule, ScheduledPruneRule
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.masks import prune_count
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.schedule import cubic_sparsity
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import pruners, register_pruner

log = logging.getLogger("lilliput")


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
        self.set_wrappers_attribute("updated_epoch", -1)
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
        if isinstance(epoch, bool) or not isinstance(epoch, Integral) or epoch < 0:
            raise AlgorithmError(f"update_epoch received {epoch!r}, expected an integer from 0.")
        self.now_epoch = int(epoch)
        for wrapper in self.get_modules_wrapper():
            wrapper.updated_epoch = -1

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> dict[str, Tensor] | None:
        """Return a new mask once per epoch, if the schedule asks for more zeros than there are."""
        if wrapper.updated_epoch == self.now_epoch:
            return None
        wrapper.updated_epoch = self.now_epoch
        target = self.target_sparsity(wrapper, self.now_epoch)
        mask = wrapper.weight_mask
        xp = namespace(mask)
        zeros = xp.size(mask) - xp.count_nonzero(mask)
        if prune_count(xp.size(mask), target) <= zeros:
            return None
        masks: dict[str, Tensor] = self.masker.calc_mask(
            sparsity=target, wrapper=wrapper, wrapper_idx=wrapper_idx
        )
        return masks

    def target_sparsity(self, wrapper: Any, epoch: int) -> float:
        """Return the sparsity that the schedule of a layer's rule gives an epoch."""
        config = wrapper.config
        return cubic_sparsity(
            epoch,
            config["initial_sparsity"],
            config["final_sparsity"],
            config["start_epoch"],
            config["end_epoch"],
            config["frequency"],
        )

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; says so if the schedule has not come to its end."""
        behind = [
            wrapper.name
            for wrapper in self.get_modules_wrapper()
            if self.target_sparsity(wrapper, self.now_epoch) < wrapper.config["final_sparsity"]
        ]
        if behind and self.is_wrapped:
            log.warning(
                "AGPPruner: stripped at epoch %d, before final_sparsity was reached in %d layers; "
                "is update_epoch(epoch) called in every epoch?",
                self.now_epoch,
                len(behind),
            )
        return super().strip()


AGPruner = AGP_Pruner = AGPPruner
