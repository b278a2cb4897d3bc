"""ModelSpeedup: the familiar form, from a model and a file of masks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import StateError, UnsupportedModelError
from lilliput.frameworks.torch.capture import plain_copy
from lilliput.frameworks.torch.files import parse_tensors
from lilliput.frameworks.torch.weights import is_binary
from lilliput.speedup.leave import check_model
from lilliput.speedup.result import SpeedupResult
from lilliput.speedup.shrink import speedup

# What safe loading raises at anything but tensors; by way of torch, as nothing here reads pickles itself.
UnpicklingError = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]


class ModelSpeedup:
    """Shrink a plain model according to masks that a pruner exported.

    Masks that cover only filters are completed, as in ``speedup(..., extend_masks=True)``.

    Parameters
    ----------
    model : torch.nn.Module
        The model; :meth:`speedup_model` changes it in place.
    dummy_input : tensor, tuple or dict
        What the model is called with, with a batch of at least two.
    masks_file : path or dict
        A file written by ``export_model(mask_path=...)``, a mapping of names such as
        ``'conv1.weight_mask'`` to tensors, or NNI's ``{'conv1': {'weight': mask, 'bias': mask}}``.
    map_location : optional
        Where to load the masks to.
    batch_dim, confidence : int
        Accepted for code written for NNI; nothing here depends on them.
    """

    def __init__(
        self,
        model: nn.Module,
        dummy_input: Any,
        masks_file: str | os.PathLike[str] | Mapping[str, Any],
        map_location: Any = None,
        batch_dim: int = 0,
        confidence: int = 8,
    ) -> None:
        check_model(model)
        self.bound_model = model
        self.dummy_input = dummy_input
        self.masks = named_masks(masks_file, map_location)
        self.result: SpeedupResult | None = None
        check_masks(model, self.masks)

    def speedup_model(self) -> nn.Module:
        """Shrink the model and return it; ``self.result`` has the report."""
        try:
            self.result = self._cut(allow_graph=False)
        except UnsupportedModelError:  # parts have to be captured: a copy shows if it is all of it
            masked = plain_copy(self.bound_model)
            apply_masks(masked, self.masks)
            self.result = speedup(masked, self.dummy_input, extend_masks=True)
            if self.result.kind != "graph":
                self.result = self._cut(allow_graph=True)
        return self.result.model

    def _cut(self, allow_graph: bool) -> SpeedupResult:
        """Shrink the model in place; if there is no way to, its weights are what they were."""
        parameters = dict(self.bound_model.named_parameters(remove_duplicate=False))
        held = {name: parameters[name].detach().clone() for name in self.masks}
        apply_masks(self.bound_model, self.masks)
        try:
            return speedup(
                self.bound_model, self.dummy_input, extend_masks=True, allow_graph=allow_graph
            )
        except BaseException:
            with torch.no_grad():
                for name, tensor in held.items():
                    if parameters[name].shape == tensor.shape:  # not stopped while it was cut
                        parameters[name].copy_(tensor)
            raise


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set what masks remove to zero."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, mask in masks.items():
        parameters[name].masked_fill_(mask.to(parameters[name].device) == 0, 0)


def named_masks(given: Any, map_location: Any = None) -> dict[str, Tensor]:
    """Return masks by the name of their parameter, whatever form they came in."""
    held = given if isinstance(given, Mapping) else read_masks(Path(given), map_location)
    masks: dict[str, Tensor] = {}
    for name, value in held.items():
        if isinstance(value, Mapping):
            found = {f"{name}.{k}": v for k, v in value.items()}
        else:
            found = {name.removesuffix("_mask"): value}
        masks.update({k: v for k, v in found.items() if v is not None})
    return masks


def read_masks(path: Path, map_location: Any = None) -> Mapping[str, Any]:
    """Return the tensors in a file, to the CPU unless another place is given; nothing is unpickled."""
    try:
        if path.suffix == ".safetensors":
            return parse_tensors(path.read_bytes())
        place = "cpu" if map_location is None else map_location
        loaded: Mapping[str, Any] = torch.load(path, map_location=place, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0]
        raise StateError(f"{path}: no readable masks ({reason}).") from error
    if not isinstance(loaded, Mapping):
        raise StateError(
            f"{path}: received a {type(loaded).__name__}, expected a mapping of masks."
        )
    return loaded


def check_masks(model: nn.Module, masks: Mapping[str, Any]) -> None:
    """Raise unless masks are of parameters of the model, of their shapes, and zeros and ones."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    faults = []
    for name, mask in masks.items():
        if name not in parameters:
            faults.append(f"{name!r} is not a parameter of this model")
        elif not isinstance(mask, Tensor) or mask.shape != parameters[name].shape:
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            faults.append(f"{name!r}: received {shape}, expected {tuple(parameters[name].shape)}")
        elif not is_binary(mask):
            faults.append(f"{name!r}: received other values than 0 and 1")
    if faults:
        raise StateError("masks do not fit the model:" + "".join(f"\n  - {x}" for x in faults))
