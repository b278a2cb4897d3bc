"""FPGMPruner: remove the filters that the others can replace.

He et al., "Filter pruning via geometric median for deep convolutional neural networks
acceleration", 2019. A filter near the geometric median of its layer is redundant, whatever its norm::

    s_i = sum_k || w_i - w_k ||_2

>>> import torch
>>> model = torch.nn.Linear(1, 3, bias=False)
>>> with torch.no_grad():
...     model.weight.copy_(torch.tensor([[1.0], [5.0], [8.0]])) is model.weight
True
>>> model = FPGMPruner(model, [{"sparsity": 0.3}]).compress()
>>> model.weight.flatten().tolist()  # 5 is the median
[1.0, 0.0, 8.0]
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelPruner, FilterMasker
from lilliput.registry import register_pruner


class FPGMMasker(FilterMasker):
    """Score channels by the distances of their filter to all others of the layer."""

    def score_filters(self, rows: Tensor) -> Tensor:
        """Return the sum of distances of each filter."""
        xp = namespace(rows)
        return xp.sum(xp.pairwise_distances(rows), axis=1)


@register_pruner("fpgm")
class FPGMPruner(ChannelPruner):
    """Prune redundant filters; see :class:`~lilliput.pruning.channels.ChannelPruner`."""

    paper = "He et al. 2019, Filter pruning via geometric median"

    masker_type = FPGMMasker
