"""LinearPruner: sparsity grows by the same amount at each update.

With n updates between ``start_epoch`` and ``end_epoch``, ``s_k = s_i + (s_f - s_i) * k / n``.

>>> import torch
>>> model = torch.nn.Linear(10, 10)
>>> pruner = LinearPruner(model, [{"final_sparsity": 0.8, "end_epoch": 4}])
>>> model = pruner.compress()
>>> for epoch in (0, 1, 3, 4):
...     pruner.update_epoch(epoch)
...     print(int((model.weight == 0).sum()))
0
20
60
80
"""

from __future__ import annotations

from lilliput.ops.schedule import linear_sparsity
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.registry import register_pruner


@register_pruner("linear")
class LinearPruner(ScheduledPruner):
    """Prune gradually, in equal steps.

    Parameters
    ----------
    model, config_list, optimizer, pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.scheduled.ScheduledPruner`.
    """

    schedule = staticmethod(linear_sparsity)
