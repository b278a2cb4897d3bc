"""LAMPPruner: rank the weights of all layers together, by their share of what would be left.

Lee et al., "Layer-adaptive sparsity for the magnitude-based pruning", 2021. The score of a weight is its
energy relative to that of all weights of its layer that are at least as large::

    s_i = w_i ** 2 / sum of w_j ** 2 over |w_j| >= |w_i|

Of equal weights, the first counts as the largest. Within a layer that is the order of magnitude; between
layers, what counts is how much of its layer's output a weight makes, whatever the scale of the layer. The
largest weight of each layer has a score of 1, so that no layer loses everything while as many weights as
layers are left.

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
    """Return the LAMP score of each weight; all must be finite.

    Examples
    --------
    >>> import torch
    >>> lamp_scores(torch.tensor([1.0, -2.0, 3.0]))
    tensor([0.0714, 0.3077, 1.0000])
    """
    import numpy as np  # here: it is not needed to import Lilliput

    xp = namespace(weight)
    wide = xp.widen(xp.detach(weight))
    size = np.abs(xp.to_numpy(wide).ravel())
    # Relative to the largest, whose square can be neither 0 nor infinite.
    energy = np.square(size / size.max(initial=np.finfo(size.dtype).smallest_subnormal))
    order = np.lexsort((-np.arange(len(energy)), energy))
    ranked = energy[order]
    left = np.cumsum(ranked[::-1])[::-1]  # of each weight and all that come after it
    scores = np.zeros_like(energy)
    scores[order] = np.divide(ranked, left, out=np.zeros_like(left), where=left > 0)
    return xp.reshape(xp.from_numpy(scores, like=wide), xp.shape(wide))


class LAMPMasker(LevelMasker):
    """Score weights by their share of what would be left of their layer."""

    def score(self, wrapper: Any) -> Tensor:
        """Return the LAMP scores of a layer; ``|w|`` where layers are not ranked together.

        Within a layer the order of weights is the same, but not that of the sums of blocks.
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
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``total_sparsity``, which is what
        the paper does, optionally with ``max_sparsity_per_layer``. With ``sparsity`` (per layer) the
        result is that of :class:`~lilliput.pruning.level.LevelPruner`.
    """

    paper = "Lee et al. 2021, Layer-adaptive sparsity for the magnitude-based pruning"

    masker_type = LAMPMasker
