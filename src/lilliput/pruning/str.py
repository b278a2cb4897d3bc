"""STRPruner: learn a threshold for each layer, and with it how sparse each layer is.

Kusupati et al., "Soft threshold weight reparameterization for learnable sparsity", 2020. A layer computes
with weights that are shrunk by a threshold of its own, which is trained along with them::

    w' = sign(w) * max(|w| - sigmoid(s), 0)        loss' = loss + decay / 2 * sum(s ** 2)

``s`` starts far below zero, where nothing is pruned, and its weight decay pulls it up; the loss opposes
that where a layer needs its weights. So ``decay`` determines the overall sparsity, and training distributes
it among the layers.

>>> import torch
>>> model = torch.nn.Linear(4, 1, bias=False)
>>> model.weight.data = torch.tensor([[0.1, -0.4, 0.2, 0.9]])
>>> pruner = STRPruner(model, [{"op_types": ["Linear"]}], start=-1.0)  # sigmoid(-1) is 0.27
>>> [round(x, 2) for x in pruner.compress().weight.flatten().tolist()]
[0.0, -0.13, 0.0, 0.63]
"""

from __future__ import annotations

from typing import Any, ClassVar

from lilliput.config.spec import Rule
from lilliput.core.checks import checked_number
from lilliput.core.masker import Answers, Targets
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.learning import LearningPruner, sigmoid
from lilliput.pruning.soft import soft_threshold
from lilliput.registry import register_pruner


@register_pruner("str")
class STRPruner(LearningPruner):
    """Prune by learned thresholds, one for each layer.

    The optimizer trains the thresholds along with the weights; masks are updated after each step, until
    ``harden()`` or ``strip()``. ``sparsity()`` returns the current sparsity of the network.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules select layers, without a sparsity.
    decay : float
        Weight decay of ``s``; larger values prune more. The weight decay of the weights matters, too, since
        thresholds are compared with them.
    start : float
        Initial value of ``s``; thresholds are ``sigmoid(s)``, far below most weights.
    """

    paper = "Kusupati et al. 2020, Soft threshold weight reparameterization"

    rule: ClassVar[type[Rule]] = Rule
    learned_name = "threshold_logit"

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        *,
        decay: float = 1e-3,
        start: float = -8.0,
    ) -> None:
        self.decay = checked_number("decay", decay, "0 or more", lambda x: x >= 0)
        self.start = checked_number("start", start, "a number, usually below zero")
        super().__init__(model, config_list, optimizer)

    def sparsity(self) -> float:
        """Return the share of zeros among all selected weights."""
        masks = [wrapper.weight_mask for wrapper in self.get_modules_wrapper()]
        spaces = [namespace(mask) for mask in masks]
        kept = sum(xp.count_nonzero(mask) for xp, mask in zip(spaces, masks, strict=True))
        total = sum(xp.size(mask) for xp, mask in zip(spaces, masks, strict=True))
        return float(1 - kept / max(total, 1))

    def first_value(self, wrapper: Any) -> Tensor:
        """Return ``start``, in the precision of the weight or higher."""
        weight = self._backend.value_of(wrapper.weight)
        xp = namespace(weight)
        return xp.to_float(self._backend.tensor(self.start, wrapper), like=xp.widen(weight))

    def penalty(self, wrapper: Any, value: Tensor) -> Tensor:
        """Return ``decay / 2 * s ** 2``."""
        return value * value * (self.decay / 2)

    def penalizes(self) -> bool:
        """Whether thresholds decay."""
        return self.decay > 0

    def compute_weight(self, wrapper: Any, weight: Tensor, mask: Tensor) -> Tensor:
        """Return the shrunk weight; its gradient goes to the kept weights and to the threshold."""
        return soft_threshold(weight, self._threshold(wrapper, weight)) * mask

    def targets(self) -> Targets:
        """Return the layers that are still trained."""
        return [(wrapper, None) for wrapper in self.soft_wrappers()]

    def calc_masks(self, targets: Targets) -> Answers:
        """Return where weights are above the threshold of their layer."""
        for wrapper, _ in targets:
            weight = self._backend.value_of(wrapper.weight)
            xp = namespace(weight)
            size = self.ranked(wrapper, xp.abs(xp.detach(weight)), "weights")
            keep = size > self.ranked(wrapper, self._threshold(wrapper, weight), "thresholds")
            yield wrapper, {"weight_mask": xp.to_float(keep, like=weight)}

    def _threshold(self, wrapper: Any, weight: Tensor) -> Tensor:
        return namespace(weight).to_float(sigmoid(self.learned(wrapper)), like=weight)
