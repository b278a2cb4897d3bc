"""LevelPruner: remove the weights of smallest magnitude.

The plainest pruner there is: in every layer, the share ``sparsity`` of weights with the smallest
``|w|`` becomes zero (Han et al., 2015, without the threshold). Exactly ``round(n * sparsity)``
weights are removed, whatever ties there are.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
>>> model = LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.8}]).compress()
>>> int((model[0].weight == 0).sum())
160
"""

from __future__ import annotations

from typing import Any

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner


class LevelMasker(ScoreMasker):
    """Score weights by magnitude."""

    def score(self, wrapper: Any) -> Tensor:
        """Return ``|w|``."""
        weight = wrapper.weight
        return namespace(weight).abs(weight)


@register_pruner("level", "fine_grained")
class LevelPruner(OneShotPruner):
    """Prune each layer's smallest weights, once, to an exact sparsity.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``sparsity`` (per layer), or
        ``total_sparsity`` with ``max_sparsity_per_layer`` (ranked over all the rule's layers).
    """

    paper = "Han et al. 2015, Learning both weights and connections"

    masker_type = LevelMasker
