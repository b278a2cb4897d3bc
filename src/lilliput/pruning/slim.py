"""SlimPruner: remove the channels with batch-norm scales close to zero.

Liu et al., "Learning efficient convolutional networks through network slimming", 2017. While the
model trains, an L1 penalty on the scales of its batch norms drives those of useless channels to zero::

    loss' = loss + scale * sum |gamma|        s_i = |gamma_i|

The penalty is applied as a subgradient, added before each optimizer step; on Keras it is a regularizer of
the scales and part of the loss.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
>>> with torch.no_grad():
...     model[1].weight.copy_(torch.tensor([0.9, 0.1, 0.5, 0.2])) is model[1].weight
True
>>> model = SlimPruner(model, [{"total_sparsity": 0.5}]).compress()
>>> model[1].weight.ne(0).tolist()
[True, False, True, False]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lilliput.core.arguments import passes_on
from lilliput.core.checks import checked_number
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelMasker, ChannelPruner, filters
from lilliput.pruning.criterion import (
    CriterionArguments,
    TrainingMasker,
    check_counts,
    checked_epoch,
)
from lilliput.registry import register_pruner

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SlimMasker(TrainingMasker, ChannelMasker):
    """Score channels by the scale of their batch norm, and push small scales to zero."""

    default_types = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"})
    only_watches = False  # the penalty starts with compress()
    training_under = "the penalty"
    scores_compare = True  # the paper has one threshold for all layers

    def __init__(
        self, model: Any, pruner: Any, training_epochs: int = 0, scale: float = 1e-4
    ) -> None:
        super().__init__(model, pruner)
        check_counts(0, training_epochs=training_epochs)
        self.training_epochs = training_epochs
        self.scale = checked_number("scale", scale, "0 or more", lambda x: x >= 0)
        self.is_penalizing = False

    def score(self, wrapper: Any) -> Tensor:
        """Return ``|gamma|``."""
        rows = filters(wrapper)
        xp = namespace(rows)
        return xp.sum(xp.abs(rows), axis=1)

    def start(self) -> None:
        """Start the penalty."""
        self.is_penalizing = True
        self.pruner.penalize(self.scale)

    def stop(self) -> None:
        """Stop the penalty."""
        self.is_penalizing = False
        self.pruner.penalize(0.0)

    def before_step(self) -> None:
        """Add the gradient of the penalty."""
        if self.is_penalizing:
            self.pruner.pull_to_zero(self.scale)


@register_pruner("slim")
class SlimPruner(ChannelPruner):
    """Prune channels with small batch-norm scales, after training with an L1 penalty on them.

    Without ``training_epochs`` the masks are computed at ``compress()``. With it, call
    ``update_epoch(epoch)`` at the start of each epoch, counting from 0; the masks are computed at epoch
    ``training_epochs``. The penalty needs the ``optimizer``.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, groups
        See :class:`~lilliput.pruning.channels.ChannelPruner`. Rules select batch norms, by default
        all of them; the paper uses ``total_sparsity``.
    training_epochs : int
        Epochs to train with the penalty before pruning.
    scale : float
        Weight of the penalty.
    """

    paper = "Liu et al. 2017, Network slimming"

    masker_type = SlimMasker
    default_types = SlimMasker.default_types
    _first_epoch = 0
    needs_optimizer = True
    tracked = ("now_epoch",)
    now_epoch: int = 0

    @passes_on(CriterionArguments, to=ChannelPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        training_epochs: int = 0,
        scale: float = 1e-4,
        **others: Unpack[CriterionArguments],
    ) -> None:
        options = {"training_epochs": training_epochs, "scale": scale}
        super().__init__(model, config_list, optimizer, example_inputs, options=options, **others)

    def update_epoch(self, epoch: int) -> None:
        """Follow the training; compute masks at epoch ``training_epochs``."""
        self.now_epoch = checked_epoch(epoch)
        self._check_optimizer()
