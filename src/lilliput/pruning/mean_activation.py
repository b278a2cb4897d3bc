"""ActivationMeanRankPruner: remove the channels with the smallest mean activation.

Molchanov et al., "Pruning convolutional neural networks for resource efficient inference", 2017,
section 2.2. The score of a channel is ``s_i = mean over batch and positions of f(x_i)``.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU())
>>> with torch.no_grad():
...     model[0].weight.copy_(torch.eye(2)) is model[0].weight
True
>>> pruner = ActivationMeanRankPruner(model, [{"sparsity": 0.5}])
>>> pruner.calibrate([torch.tensor([[1.0, 3.0], [1.0, 2.0]])])
>>> pruner.compress()[0].weight.tolist()
[[0.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor
from lilliput.pruning.activations import ActivationMasker, ActivationPruner
from lilliput.registry import register_pruner


class MeanActivationMasker(ActivationMasker):
    """Score channels by their mean activation."""

    def measure(self, activations: Tensor) -> Tensor:
        """Return the activations themselves."""
        return activations


@register_pruner("mean_activation", "activation_mean", "ActivationMeanRankFilterPruner")
class ActivationMeanRankPruner(ActivationPruner):
    """Prune the channels with the smallest mean activation.

    See :class:`~lilliput.pruning.activations.ActivationPruner`.
    """

    paper = "Molchanov et al. 2017, Pruning CNNs for resource efficient inference"

    masker_type = MeanActivationMasker
