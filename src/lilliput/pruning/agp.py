"""AGPPruner: automated gradual pruning.

Zhu & Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression",
2017. Sparsity grows on a cubic curve, fast at first and slowly towards the end::

    s_t = s_f + (s_i - s_f) * (1 - (t - t_0) / (n * dt)) ** 3

and the smallest weights are masked at each update. Here t counts epochs.

With ``soft=True`` weights are shrunk instead of masked, and pruned weights may become nonzero again: see
:mod:`lilliput.pruning.soft`.

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
from lilliput.pruning.soft import SoftScheduledPruner
from lilliput.registry import register_pruner


@register_pruner("agp", "AGPruner", "AGP_Pruner")
class AGPPruner(SoftScheduledPruner):
    """Prune gradually, on a cubic schedule.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0. Pruned weights stay
    pruned, and ``final_sparsity`` is met exactly. With ``soft=True`` pruned weights may become nonzero
    again until the last epochs.

    Parameters
    ----------
    model, config_list, optimizer, pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.scheduled.ScheduledPruner`.
    soft, hard_epoch
        See :class:`~lilliput.pruning.soft.SoftScheduledPruner`.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(4, 1, bias=False)
    >>> model.weight.data = torch.tensor([[1.0, -4.0, 2.0, 7.0]])
    >>> rule = {"initial_sparsity": 0.5, "final_sparsity": 0.5, "end_epoch": 2}
    >>> pruner = AGPPruner(model, [rule], soft=True)
    >>> pruner.compress().weight.sign().tolist()  # half of them are zero, the others shrunk
    [[0.0, -1.0, 0.0, 1.0]]
    >>> pruner.get_modules_wrapper()[0].weight.tolist()  # and all of them are trained
    [[1.0, -4.0, 2.0, 7.0]]
    """

    paper = "Zhu & Gupta 2017, To prune, or not to prune"

    schedule = staticmethod(cubic_sparsity)
