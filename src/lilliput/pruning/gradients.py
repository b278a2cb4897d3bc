"""Criteria based on the gradient of the loss: how much it changes if a weight becomes zero.

To first order, the squared change is ``(g * w) ** 2``, which is averaged over batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.errors import AlgorithmError, StageError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.collecting import CollectingMasker, DifferentiatingPruner


class GradientMasker(CollectingMasker):
    """Score by gradient times weight, squared, averaged over batches."""

    is_watching: bool = False

    def measure(self, squares: Tensor, layer: LayerInfo) -> Tensor:
        """Return the quantity to average, given ``(g * w) ** 2`` of each weight."""
        raise NotImplementedError(f"{type(self).__name__} must override measure().")

    def start(self) -> None:
        """Start reading gradients."""
        self.is_watching = True

    def stop(self) -> None:
        """Stop reading gradients."""
        self.is_watching = False

    def before_step(self) -> None:
        """Add the gradients of a batch."""
        for wrapper in self.pruner.get_modules_wrapper() if self.is_watching else ():
            gradient = None if self.has_enough(wrapper) else self.pruner.gradient(wrapper)
            if gradient is not None:
                xp = namespace(gradient)
                effect = xp.widen(gradient) * xp.widen(xp.detach(wrapper.weight))
                squares = effect * effect
                if self.can_count(squares, wrapper.name):
                    self.add(wrapper, self.measure(squares, wrapper.layer_info), 1)

    def has_enough(self, wrapper: Any) -> bool:
        """Whether further batches of a layer are ignored."""
        return bool(wrapper.is_collected)

    def check_progress(self) -> None:
        """Raise without an optimizer, or if a layer has no gradient while others have enough."""
        wrappers = self.pruner.get_modules_wrapper()
        if self.pruner.optimizer is None:
            raise StageError(
                f"{type(self.pruner).__name__} with {type(self).__name__} reads gradients before the steps "
                "of the optimizer, but has none; pass the model's optimizer, or call "
                "bind_optimizer(optimizer)."
            )
        unseen = [wrapper.name for wrapper in wrappers if not wrapper.batches]
        if unseen and len(unseen) < len(wrappers) and any(w.is_collected for w in wrappers):
            raise AlgorithmError(
                f"layer {unseen[0]!r} cannot be scored, and no layer is pruned until it is: "
                f"{self.nothing_seen()}."
            )

    def nothing_seen(self) -> str:
        """Return why there may be no gradients."""
        return "its weight has no gradient: it is frozen, or the loss does not use it; exclude it"


class GradientPruner(DifferentiatingPruner):
    """Prune what matters least to the loss.

    The arguments are those of :class:`~lilliput.pruning.collecting.CollectingPruner`. Gradients are read
    before the steps of ``optimizer``, or in :meth:`calibrate`, which needs a ``loss``.
    """

    _needs_loss = True

    def _run(self, batches: Iterable[Any], forward: Callable[..., Any] | None) -> None:
        self._backend.run(self.bound_model, batches, self._loss or forward, self.masker.before_step)
