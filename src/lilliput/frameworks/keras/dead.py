"""Find the units of a masked Keras model that are zero."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lilliput.frameworks.keras.tensors import Tensors
from lilliput.frameworks.keras.variables import to_array
from lilliput.graph.dead import Zeros
from lilliput.graph.groups import Slice
from lilliput.graph.labels import Flags


def masked_in(masks: Mapping[str, Flags], tensors: Tensors) -> Zeros:
    """Return the zeros given by masks, for ``find_dead``; untrained statistics are ignored."""

    def zeros(piece: Slice) -> Flags | None:
        if piece.tensor not in tensors.trained:
            return None
        mask = masks.get(piece.tensor)
        return np.zeros(piece.units.shape, bool) if mask is None else _dead_indices(piece, mask)

    return zeros


def zeros_in(masks: Mapping[str, Flags], tensors: Tensors) -> Zeros:
    """Return the zeros of the masked variables, whatever their origin."""
    trained = {name: tensors.variables[name] for name in tensors.trained}
    stays = {
        name: (to_array(variable) != 0) & masks.get(name, True)
        for name, variable in trained.items()
    }
    return masked_in(stays, tensors)


def _dead_indices(piece: Slice, mask: Flags) -> Flags:
    if piece.units.ndim == 1:
        return _lost(mask, piece.dim)
    by_filter = np.moveaxis(mask, (piece.filters, piece.dim), (0, 1))
    return np.stack([_lost(block, 1) for block in np.split(by_filter, len(piece.units))])


def _lost(mask: Flags, dim: int) -> Flags:
    """Return the indices along a dimension where a mask keeps nothing."""
    rows = np.moveaxis(mask, dim, 0).reshape(mask.shape[dim], -1)
    return np.logical_not(rows.any(axis=1))
