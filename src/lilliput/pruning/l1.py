"""L1NormPruner: remove the filters with the smallest sum of absolute weights.

Li et al., "Pruning filters for efficient ConvNets", 2017. The score of a filter is::

    s_i = sum_j |w_ij|

>>> import torch
>>> model = torch.nn.Conv2d(3, 8, 3)
>>> model = L1NormPruner(model, [{"sparsity": 0.25}]).compress()
>>> int((model.weight == 0).flatten(1).all(1).sum())
2
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelPruner, FilterMasker
from lilliput.registry import register_pruner


class L1NormMasker(FilterMasker):
    """Score channels by the L1 norm of their filters."""

    def score_filters(self, rows: Tensor) -> Tensor:
        """Return the sum of ``|w|`` over each filter."""
        xp = namespace(rows)
        return xp.sum(xp.abs(rows), axis=1)


@register_pruner("l1", "l1_filter", "L1FilterPruner")
class L1NormPruner(ChannelPruner):
    """Prune the filters with the smallest L1 norm; see :class:`~lilliput.pruning.channels.ChannelPruner`."""

    paper = "Li et al. 2017, Pruning filters for efficient ConvNets"

    masker_type = L1NormMasker
