"""``fix_mask_conflict``: make masks agree on the removed channels, so that they can be cut out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.compat.nni.tools.dependency import Channels, GroupDependency
from lilliput.compat.nni.tools.filing import PathLike, read_tensors
from lilliput.errors import ConfigError

log = logging.getLogger("lilliput")

Masks = dict[str, dict[str, Any]]


def fix_mask_conflict(
    masks: PathLike | Mapping[str, Mapping[str, Any]],
    model: nn.Module | None = None,
    dummy_input: Any = None,
    traced: Any = None,
) -> Masks:
    """Return masks that keep a channel in every layer that produces it, if one of them keeps it.

    A grouped convolution, and the layers that it reads, keep equally many channels in each group: if more are
    removed in one group than in another, the last ones of it are restored.

    Parameters
    ----------
    masks : dict or path
        Masks of filters, as ``{layer: {'weight': mask, 'bias': mask}}``, or their file, which is not
        changed. Layers with masks of single weights are skipped.
    model, dummy_input
        The model and its inputs.
    traced : optional
        Not used.
    """
    held = read_tensors(masks, "masks")
    if model is None or dummy_input is None or not held:
        raise ConfigError("fix_mask_conflict: pass masks, model and dummy_input.")
    groups = GroupDependency(model, dummy_input)
    channels = groups.channels
    fixed = {k: {x: _copied(y) for x, y in v.items()} for k, v in held.items()}
    kept = {}
    for name, mask in fixed.items():
        flags = _kept(mask["weight"], channels.out_axis(name)) if name in channels.layers else None
        if flags is None:
            log.info("fix_mask_conflict: %s has no mask of whole filters and is left alone.", name)
        else:
            kept[name] = flags
    while _balance(kept, groups.dependency) | _agree(kept, channels):
        pass
    for name, flags in kept.items():
        _write(fixed[name], flags, channels.out_axis(name))
    return fixed


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _kept(mask: Tensor, axis: int) -> Any:
    """Return which filters a mask keeps, None if it removes parts of them."""
    rows = (mask != 0).cpu().movedim(axis, 0).flatten(1)
    return rows.any(1).numpy() if bool((rows.all(1) | ~rows.any(1)).all()) else None


def _balance(kept: dict[str, Any], groups: Mapping[str, int]) -> bool:
    """Remove equally many channels from each group of a layer; return whether any were restored."""
    changed = False
    for name, flags in kept.items():
        number = groups.get(name, 1)
        parts = flags.reshape(number if len(flags) % number == 0 else 1, -1)
        fewest = (~parts).sum(1).min()
        for part in parts:
            back = np.flatnonzero(~part)[fewest:]
            part[back] = True
            changed |= bool(len(back))
    return changed


def _agree(kept: dict[str, Any], channels: Channels) -> bool:
    """Keep a channel everywhere if it is kept anywhere; return whether any were restored."""
    made = {name: channels.made(name) for name in channels.layers}
    stays: set[int] = set()
    for name, columns in made.items():
        if len(columns) == 1:
            flags = kept.get(name)
            stays |= set(columns[0][slice(None) if flags is None else flags].tolist())
    changed = False
    for name, flags in kept.items():
        for column in made[name] if len(made[name]) == 1 else ():
            back = np.isin(column, list(stays)) & ~flags
            flags |= back
            changed |= bool(back.any())
    return changed


def _write(mask: dict[str, Any], flags: Any, axis: int) -> None:
    """Set the masks of a layer to those of its kept filters."""
    keep = torch.from_numpy(flags)
    for key, value in mask.items():
        if isinstance(value, Tensor):
            at = axis if value.dim() > 1 else 0
            wide = keep.to(value).reshape([-1 if d == at else 1 for d in range(value.dim())])
            mask[key] = wide.expand_as(value).clone()
