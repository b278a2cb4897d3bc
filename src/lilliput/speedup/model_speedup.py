"""The familiar form of speedup: a plain model, an input, and a file of masks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks import part_for
from lilliput.speedup.result import SpeedupResult
from lilliput.speedup.shrink import speedup


class ModelSpeedup:
    """Shrink a plain model according to masks that a pruner exported.

    Masks that cover only filters are extended, as in ``speedup(..., extend_masks=True)``.

    Parameters
    ----------
    model : torch.nn.Module
        The model; :meth:`speedup_model` changes it in place.
    dummy_input : tensor, tuple or dict
        Inputs of the model, with a batch of at least two.
    masks_file : path or dict
        A file written by ``export_model(mask_path=...)``, a mapping of names such as
        ``'conv1.weight_mask'`` to tensors, or NNI's ``{'conv1': {'weight': mask, 'bias': mask}}``.
    map_location : optional
        Where to load the masks.
    batch_dim, confidence : int
        Accepted for code written for NNI, but unused.
    """

    def __init__(
        self,
        model: Any,
        dummy_input: Any,
        masks_file: str | os.PathLike[str] | Mapping[str, Any],
        map_location: Any = None,
        batch_dim: int = 0,
        confidence: int = 8,
    ) -> None:
        self.bound_model = model
        self.dummy_input = dummy_input
        self.masks = part_for(model, "mask_files").find_masks(masks_file, model, map_location)
        self.result: SpeedupResult | None = None

    def speedup_model(self) -> Any:
        """Shrink the model and return it; ``self.result`` has the report."""
        try:
            self.result = self._cut(allow_graph=False)
        except UnsupportedModelError:  # parts or all of it must be captured
            self.result = self._cut(inplace=False)
            if self.result.kind != "graph":
                self.result = self._cut()
        return self.result.model

    def _cut(self, **options: bool) -> SpeedupResult:
        return speedup(
            self.bound_model, self.dummy_input, masks=self.masks, extend_masks=True, **options
        )
