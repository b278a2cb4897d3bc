"""TaylorFOWeightPruner: remove the filters whose removal changes the loss least.

Molchanov et al., "Importance estimation for neural network pruning", 2019, eq. 8: the first-order
Taylor expansion of the squared change of the loss, weight by weight, averaged over batches::

    s_i = mean over batches of sum_j (g_ij * w_ij) ** 2

>>> import torch
>>> model = torch.nn.Linear(1, 2, bias=False)
>>> with torch.no_grad():
...     model.weight.copy_(torch.tensor([[1.0], [2.0]])) is model.weight
True
>>> pruner = TaylorFOWeightPruner(model, [{"sparsity": 0.5}])
>>> pruner.calibrate([torch.ones(1, 1)], loss=lambda model, x: (model(x) * x.new([5, 1])).sum())
>>> pruner.compress().weight.tolist()  # (5 * 1)² > (1 * 2)²
[[1.0], [0.0]]
"""

from __future__ import annotations

from lilliput.config.layer import LayerInfo
from lilliput.ops.channels import channel_rows
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.gradients import GradientMasker, GradientPruner
from lilliput.registry import register_pruner


class TaylorMasker(GradientMasker, ChannelMasker):
    """Score channels by gradient times weight, squared."""

    def measure(self, squares: Tensor, layer: LayerInfo) -> Tensor:
        """Return the sum over each channel's weights."""
        rows = channel_rows(squares, layer.out_axis, layer.out_groups)
        return namespace(rows).sum(rows, axis=1)


@register_pruner("taylorfo", "taylor", "TaylorFOWeightFilterPruner", "TaylorFOWeightPruner")
class TaylorFOWeightPruner(GradientPruner, ChannelPruner):
    """Prune the filters that matter least to the loss.

    The arguments are those of :class:`~lilliput.pruning.collecting.CollectingPruner`. Gradients are read
    before the steps of ``optimizer``, or in :meth:`calibrate`, which needs a ``loss``.
    """

    paper = "Molchanov et al. 2019, Importance estimation for neural network pruning"

    masker_type = TaylorMasker
