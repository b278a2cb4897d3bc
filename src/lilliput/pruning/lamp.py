"""LAMPPruner: rank the weights of all layers together, by their share of the remaining energy.

Lee et al., "Layer-adaptive sparsity for the magnitude-based pruning", 2021. The score of a weight is its
energy relative to that of all weights of its layer that are at least as large::

    s_i = w_i ** 2 / sum of w_j ** 2 over |w_j| >= |w_i|

Among equal weights, the first counts as the largest. Within a layer this is the order of magnitude;
between layers, the score measures how much a weight contributes to the output of its layer, independent
of the layer's scale. The largest weight of each layer has a score of 1, so no layer loses everything as
long as at least as many weights remain as there are layers.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
>>> model = LAMPPruner(model, [{"op_types": ["Linear"], "total_sparsity": 0.8}]).compress()
>>> int((model[0].weight == 0).sum() + (model[2].weight == 0).sum())
176
"""

from __future__ import annotations

from typing import Any

from lilliput.errors import AlgorithmError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.level import LevelMasker
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import register_pruner


def lamp_scores(weight: Tensor) -> Tensor:
    """Return the LAMP score of each weight; all weights must be finite.

    Examples
    --------
    >>> import torch
    >>> lamp_scores(torch.tensor([1.0, -2.0, 3.0]))
    tensor([0.0714, 0.3077, 1.0000])
    """
    import numpy as np  # imported here: importing Lilliput does not need it

    xp = namespace(weight)
    wide = xp.widen(xp.detach(weight))
    size = np.abs(xp.to_numpy(wide).ravel())
    # Relative to the largest, whose square then neither overflows nor underflows.
    energy = np.square(size / size.max(initial=np.finfo(size.dtype).smallest_subnormal))
    order = np.lexsort((-np.arange(len(energy)), energy))
    ranked = energy[order]
    left = np.cumsum(ranked[::-1])[::-1]  # sum of each entry and all entries after it
    scores = np.zeros_like(energy)
    scores[order] = np.divide(ranked, left, out=np.zeros_like(left), where=left > 0)
    return xp.reshape(xp.from_numpy(scores, like=wide), xp.shape(wide))


class LAMPMasker(LevelMasker):
    """Score weights by their share of the remaining energy of their layer."""

    def score(self, wrapper: Any) -> Tensor:
        """Return the LAMP scores of a layer; ``|w|`` where layers are not ranked together.

        Within a layer both rank weights equally, but not sums over blocks.
        """
        if wrapper.config.get("total_sparsity") is None:
            return super().score(wrapper)
        weight = wrapper.weight
        xp = namespace(weight)
        if xp.count_nonzero(xp.isfinite(weight)) < xp.size(weight):
            found = "NaN" if xp.any(xp.isnan(weight)) else "infinity"
            raise AlgorithmError(
                f"layer {wrapper.name!r} has {found} among its weights, so their shares of the layer cannot "
                "be computed; check the weights of this layer."
            )
        return lamp_scores(weight)


@register_pruner("lamp")
class LAMPPruner(OneShotPruner):
    """Prune the weights with the smallest LAMP score in one shot, with layer-adaptive sparsity.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``total_sparsity``, as in the
        paper, optionally with ``max_sparsity_per_layer``. With ``sparsity`` (per layer) the
        result is that of :class:`~lilliput.pruning.level.LevelPruner`.
    """

    paper = "Lee et al. 2021, Layer-adaptive sparsity for the magnitude-based pruning"

    masker_type = LAMPMasker
