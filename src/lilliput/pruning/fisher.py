"""FisherPruner: remove the single weights whose removal changes the loss least.

LeCun et al., "Optimal brain damage", 1989, with the Fisher information in place of the second derivatives
(Theis et al., "Faster gaze prediction with dense networks and Fisher pruning", 2018), as batches show it::

    s_i = mean over batches of (g_i * w_i) ** 2

Smaller batches are closer to the Fisher information. Scores are comparable across layers, so that
``total_sparsity`` distributes the zeros by what they cost. The gradient of a weight whose output no layer
uses any more is zero, and it is pruned next.

Use it on a schedule, where it reads the gradients of the training:
``AGPPruner(..., pruning_algorithm="fisher")``. A trained network that fits its labels has hardly any
gradients: in one shot, magnitude (:mod:`lilliput.pruning.lamp`) is usually the better choice.

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
from lilliput.pruning.granularity import block_of
from lilliput.pruning.one_shot import ScoreMasker
from lilliput.registry import register_pruner


class FisherMasker(GradientMasker, ScoreMasker):
    """Score weights by gradient times weight, squared.

    A pruner that asks repeatedly gets the average of the newest batches: older ones count half as much each
    time that as many new ones have been added.
    """

    def measure(self, squares: Tensor, layer: LayerInfo) -> Tensor:
        """Return them as they are: one score for each weight."""
        return squares

    def has_enough(self, wrapper: Any) -> bool:
        """Whether further batches of a layer are ignored: never on a schedule."""
        return isinstance(self.pruner, GradientPruner) and super().has_enough(wrapper)

    def add(self, wrapper: Any, sums: Tensor, count: int) -> None:
        """As in :class:`CollectingMasker`; earlier batches count half once there are enough new ones."""
        super().add(wrapper, sums, count)
        if wrapper.batches == 2 * self.training_batches and not self.is_calibrating:
            wrapper.statistic = wrapper.statistic * 0.5
            wrapper.observations //= 2
            wrapper.batches //= 2

    def score(self, wrapper: Any) -> Tensor:
        """Return the averages; single weights that are zero already rank below those without a gradient."""
        score = super().score(wrapper)
        if block_of(wrapper.layer_info) is not None:
            return score
        xp = namespace(score)
        return xp.where(xp.detach(wrapper.weight) == 0, -1.0, score)


@register_pruner("fisher")
class FisherPruner(GradientPruner):
    """Prune the weights that matter least to the loss, in one shot.

    The arguments are those of :class:`~lilliput.pruning.collecting.CollectingPruner`. Rules have ``sparsity``
    (per layer), optionally with ``granularity``, or ``total_sparsity`` with ``max_sparsity_per_layer``
    (ranked over all the rule's layers). Gradients are read before the steps of ``optimizer``, or in
    :meth:`calibrate`, which needs a ``loss``.
    """

    paper = "Theis et al. 2018, Faster gaze prediction with dense networks and Fisher pruning"

    masker_type = FisherMasker

    def _stop_if_done(self) -> None:
        """As in :class:`OneShotPruner`; also drop the statistics, which are as large as the weights."""
        super()._stop_if_done()
        if self.masker is not None and not self._needs_criterion():
            self.set_wrappers_attribute("statistic", None)
