"""FisherPruner: remove the single weights whose removal changes the loss least.

LeCun et al., "Optimal brain damage", 1989, with the diagonal of the empirical Fisher information in place of
the second derivatives (Theis et al., "Faster gaze prediction with dense networks and Fisher pruning", 2018)::

    s_i = mean over batches of (g_i * w_i) ** 2

Scores are comparable across layers, so that ``total_sparsity`` distributes the zeros by what they cost. A
weight whose output no other layer uses any more has no gradient, and is pruned next. On a schedule
(``AGPPruner(..., pruning_algorithm="fisher")``) the gradients of the training are read, and averaged anew
for each update.

>>> import torch
>>> model = torch.nn.Linear(3, 1, bias=False)
>>> model.weight.data = torch.tensor([[1.0, 2.0, 3.0]])
>>> pruner = FisherPruner(model, [{"sparsity": 0.34}])
>>> pruner.calibrate([torch.tensor([[5.0, 1.0, 1.0]])], loss=lambda model, x: model(x).sum())
>>> pruner.compress().weight.tolist()  # (1 * 2)² is the smallest
[[1.0, 0.0, 3.0]]
"""

from __future__ import annotations

from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.gradients import GradientMasker, GradientPruner
from lilliput.pruning.one_shot import ScoreMasker
from lilliput.registry import register_pruner


class FisherMasker(GradientMasker, ScoreMasker):
    """Score weights by gradient times weight, squared."""

    def measure(self, squares: Tensor, layer: LayerInfo) -> Tensor:
        """Return them as they are: one score for each weight."""
        return squares

    def score(self, wrapper: Any) -> Tensor:
        """Return the averages; weights that are zero already rank below those without a gradient."""
        score = super().score(wrapper)
        xp = namespace(score)
        return xp.where(xp.detach(wrapper.weight) == 0, -1.0, score)


@register_pruner("fisher", "obd")
class FisherPruner(GradientPruner):
    """Prune the weights that matter least to the loss, in one shot.

    The arguments are those of :class:`~lilliput.pruning.collecting.CollectingPruner`. Rules have ``sparsity``
    (per layer), optionally with ``granularity``, or ``total_sparsity`` with ``max_sparsity_per_layer``
    (ranked over all the rule's layers). Gradients are read before the steps of ``optimizer``, or in
    :meth:`calibrate`, which needs a ``loss``.
    """

    paper = "LeCun et al. 1989, Optimal brain damage; Theis et al. 2018, Fisher pruning"

    masker_type = FisherMasker
