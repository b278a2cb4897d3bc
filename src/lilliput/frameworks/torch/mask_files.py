"""Masks that are not attached to the model: from a mapping, or from a file that a pruner wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import StateError
from lilliput.frameworks.torch.files import parse_tensors
from lilliput.frameworks.torch.weights import is_binary

# Raised by safe loading for anything but tensors; from torch, because nothing here uses pickle
# itself.
UnpicklingError = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]


def find_masks(given: Any, model: nn.Module, map_location: Any = None) -> dict[str, Tensor]:
    """Return masks by the name of their parameter, or raise if they do not fit the model."""
    masks = named_masks(given, map_location)
    check_masks(model, masks)
    return masks


@torch.no_grad()
def put_back(model: nn.Module, held: Mapping[str, Tensor]) -> None:
    """Undo :func:`apply_masks` with the previous values, except where the model was cut."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in held.items():
        if parameters[name].shape == tensor.shape:
            parameters[name].copy_(tensor)


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set masked entries to zero."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, mask in masks.items():
        parameters[name].masked_fill_(mask.to(parameters[name].device) == 0, 0)


def named_masks(given: Any, map_location: Any = None) -> dict[str, Tensor]:
    """Return masks by the name of their parameter, from any of the supported forms."""
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
    """Return the tensors in a file, on the CPU unless another device is given; nothing is unpickled."""
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
    """Raise unless masks belong to parameters of the model, have their shapes, and contain only 0 and 1."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    faults = []
    for name, mask in masks.items():
        if name not in parameters:
            faults.append(f"{name!r} is not a parameter of this model")
        elif not isinstance(mask, Tensor) or mask.shape != parameters[name].shape:
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            faults.append(f"{name!r}: received {shape}, expected {tuple(parameters[name].shape)}")
        elif not is_binary(mask):
            faults.append(f"{name!r}: received values other than 0 and 1")
    if faults:
        raise StateError("masks do not fit the model:" + "".join(f"\n  - {x}" for x in faults))
