"""L2NormPruner: remove the filters with the smallest Euclidean norm.

The score of a filter is ``s_i = sqrt(sum_j w_ij ** 2)``.

>>> import torch
>>> model = torch.nn.Conv2d(3, 8, 3)
>>> model = L2NormPruner(model, [{"sparsity": 0.25}]).compress()
>>> int((model.weight == 0).flatten(1).all(1).sum())
2
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelPruner, FilterMasker
from lilliput.registry import register_pruner


class L2NormMasker(FilterMasker):
    """Score channels by the L2 norm of their filters."""

    def score_filters(self, rows: Tensor) -> Tensor:
        """Return the Euclidean norm of each filter."""
        xp = namespace(rows)
        return xp.sqrt(xp.sum(rows * rows, axis=1))


@register_pruner("l2", "l2_filter", "L2FilterPruner")
class L2NormPruner(ChannelPruner):
    """Prune the filters with the smallest L2 norm; see :class:`~lilliput.pruning.channels.ChannelPruner`."""

    masker_type = L2NormMasker
