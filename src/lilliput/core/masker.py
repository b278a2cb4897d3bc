"""The part of a pruning algorithm that turns one layer's weight into its masks."""

from __future__ import annotations

from typing import Any


class WeightMasker:
    """Compute the masks of one layer for a given sparsity.

    Parameters
    ----------
    model : object
        The model being pruned, for maskers that look at more than one layer.
    pruner : Pruner
        The pruner that asks; offers ``set_wrappers_attribute`` and ``add_activation_collector``.
    """

    def __init__(self, model: Any, pruner: Any) -> None:
        self.model = model
        self.pruner = pruner

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Any] | None:
        """Return ``{'weight_mask': ..., 'bias_mask': ...}`` for one layer, or None for no change."""
        raise NotImplementedError(f"{type(self).__name__} must override calc_mask().")
