"""TaylorFOWeightPruner: remove the filters whose removal changes the loss least.

Molchanov et al., "Importance estimation for neural network pruning", 2019, eq. 8: the first-order
Taylor expansion of the squared change of the loss, weight by weight, averaged over batches::

    s_i = mean over batches of sum_j (g_ij * w_ij) ** 2

>>> import torch
>>> model = torch.nn.Linear(1, 2, bias=False)
>>> with torch.no_grad():
...     model.weight.copy_(torch.tensor([[1.0], [2.0]])) is model.weight
True
>>> pruner = TaylorFOWeightPruner(model, [{"sparsity": 0.5}])
>>> pruner.calibrate([torch.ones(1, 1)], loss=lambda model, x: (model(x) * x.new([5, 1])).sum())
>>> pruner.compress().weight.tolist()  # (5 * 1)² > (1 * 2)²
[[1.0], [0.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lilliput.ops.channels import channel_rows
from lilliput.ops.namespace import namespace
from lilliput.pruning.collecting import CollectingMasker, DifferentiatingPruner
from lilliput.registry import register_pruner


class TaylorMasker(CollectingMasker):
    """Score channels by gradient times weight, squared."""

    is_watching: bool = False

    def start(self) -> None:
        """Start reading gradients."""
        self.is_watching = True

    def stop(self) -> None:
        """Stop reading gradients."""
        self.is_watching = False

    def before_step(self) -> None:
        """Add the gradients of a batch."""
        for wrapper in self.pruner.get_modules_wrapper() if self.is_watching else ():
            gradient = None if wrapper.is_collected else self.pruner.gradient(wrapper)
            if gradient is not None:
                xp, layer = namespace(gradient), wrapper.layer_info
                effect = xp.widen(gradient) * xp.widen(xp.detach(wrapper.weight))
                rows = channel_rows(effect * effect, layer.out_axis, layer.out_groups)
                if self.can_count(rows, wrapper.name):
                    self.add(wrapper, xp.sum(rows, axis=1), 1)


@register_pruner("taylorfo", "taylor", "TaylorFOWeightFilterPruner", "TaylorFOWeightPruner")
class TaylorFOWeightPruner(DifferentiatingPruner):
    """Prune the filters that matter least to the loss.

    The arguments are those of :class:`~lilliput.pruning.collecting.CollectingPruner`. Gradients are read
    before the steps of ``optimizer``, or in :meth:`calibrate`, which needs a ``loss``.
    """

    paper = "Molchanov et al. 2019, Importance estimation for neural network pruning"

    masker_type = TaylorMasker
    _needs_loss = True

    def _run(self, batches: Iterable[Any], forward: Callable[..., Any] | None) -> None:
        self._backend.run(self.bound_model, batches, self._loss or forward, self.masker.before_step)
