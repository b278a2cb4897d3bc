"""Masks that are not attached to the model: from a mapping, or from a file that a pruner wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import StateError
from lilliput.frameworks.keras.discover import discover
from lilliput.frameworks.keras.files import parse_tensors
from lilliput.frameworks.keras.tensors import Tensors
from lilliput.frameworks.keras.variables import to_array
from lilliput.graph.labels import Flags

Masks = Mapping[str, Any] | str | os.PathLike[str]


def read_masks(given: Masks, tensors: Tensors) -> dict[str, Flags]:
    """Return masks as boolean arrays by variable name, or raise if they do not fit."""
    held = given if isinstance(given, Mapping) else _read(Path(given))
    names, faults, found = _names(tensors), [], {}
    for key, mask in held.items():
        name = names.get(key.removesuffix("_mask"))
        array = np.asarray(to_array(mask))
        expected = None if name is None else tuple(tensors.variables[name].shape)
        if name is None:
            faults.append(f"{key!r} is not a variable of this model")
        elif array.shape != expected:
            faults.append(f"{key!r}: received {array.shape}, expected {expected}")
        elif not np.isin(array, (0, 1)).all():
            faults.append(f"{key!r}: received values other than 0 and 1")
        else:
            found[name] = array != 0
    if faults:
        raise StateError("masks do not fit the model:" + "".join(f"\n  - {x}" for x in faults))
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_tensors(path.read_bytes())
    except (OSError, StateError) as error:
        raise StateError(f"{path}: no readable masks ({error}).") from error


def _names(tensors: Tensors) -> dict[str, str]:
    """Return the names of variables by their possible names in a file: ``conv.weight`` is the kernel."""
    names = {name: name for name in tensors.variables}
    names |= {f"{name}.weight": name for name in tensors.variables}
    for layer in discover(tensors.model):
        for attribute, role in ((layer.weight_name, "weight"), (layer.bias_name, "bias")):
            held = None if attribute is None else tensors.find(layer.module, attribute)
            if held is not None:
                names[f"{layer.name}.{role}"] = held[0]
    return names
