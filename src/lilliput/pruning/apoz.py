"""ActivationAPoZRankPruner: remove the channels that are zero most of the time.

Hu et al., "Network trimming: a data-driven neuron pruning approach towards efficient deep
architectures", 2016. APoZ is a channel's average percentage of zeros after the activation; the score
is the share of nonzero activations::

    s_i = 1 - APoZ_i = mean over batch and positions of [f(x_i) != 0]

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU())
>>> with torch.no_grad():
...     model[0].weight.copy_(torch.eye(2)) is model[0].weight
True
>>> pruner = ActivationAPoZRankPruner(model, [{"sparsity": 0.5}])
>>> pruner.calibrate([torch.tensor([[1.0, -1.0], [1.0, 1.0]])])
>>> pruner.compress()[0].weight.tolist()
[[1.0, 0.0], [0.0, 0.0]]
"""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.activations import ActivationMasker, ActivationPruner
from lilliput.registry import register_pruner


class APoZMasker(ActivationMasker):
    """Score channels by how often they are nonzero."""

    def measure(self, activations: Tensor) -> Tensor:
        """Return 1 where an activation is nonzero."""
        return namespace(activations).to_float(activations != 0, like=activations)


@register_pruner("apoz", "activation_apoz", "ActivationAPoZRankFilterPruner")
class ActivationAPoZRankPruner(ActivationPruner):
    """Prune the channels that are zero most of the time.

    See :class:`~lilliput.pruning.activations.ActivationPruner`.
    """

    paper = "Hu et al. 2016, Network trimming"

    masker_type = APoZMasker
