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

from lilliput.ops.schedule import cubic_sparsity
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.registry import register_pruner


@register_pruner("agp", "AGPruner", "AGP_Pruner")
class AGPPruner(ScheduledPruner):
    """Prune more with every epoch, on the cubic schedule.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0. Weights once pruned stay
    pruned, and ``final_sparsity`` is met exactly.

    Parameters
    ----------
    model, config_list, optimizer, pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.scheduled.ScheduledPruner`.
    """

    paper = "Zhu & Gupta 2017, To prune, or not to prune"

    schedule = staticmethod(cubic_sparsity)
