"""Channel groups of one layer each, for models whose channels were not traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from lilliput.config.layer import LayerInfo
from lilliput.graph.groups import Group, Slice


class UntracedLayers:
    """Groups of one layer each, used instead of traced groups.

    Parameters
    ----------
    layers : iterable of LayerInfo
        The layers that rules match.
    """

    def __init__(self, layers: Iterable[LayerInfo]) -> None:
        self.groups = tuple(_group_of(layer) for layer in layers if not _is_recurrent(layer))

    def reason(self, tensor: str) -> str:
        """Return why the channels of a parameter cannot be removed."""
        return (
            "the gates of a recurrent layer must lose the same units, which requires example_inputs"
        )


def _is_recurrent(layer: LayerInfo) -> bool:
    """Whether a layer is an RNN, LSTM or GRU."""
    return not layer.types.isdisjoint({"RNNBase", "RNNCellBase"})


def _group_of(layer: LayerInfo) -> Group:
    units = np.arange(layer.out_channels)
    own = units if layer.out_groups == 1 else units.reshape(layer.out_groups, -1)
    name = layer.tensor_name
    slices = [Slice(name, layer.out_axis, own, True)]
    for owner in layer.owners:
        if owner.bias_name is not None and _has_channels(owner.module, owner.bias_name, units.size):
            bias = f"{owner.path}.{owner.bias_name}" if owner.path else owner.bias_name
            slices.append(Slice(bias, 0, units, False))
    return Group(name, units.size, tuple(slices))


def _has_channels(module: Any, name: str, size: int) -> bool:
    """Whether a bias has the same channels; that of a tied output layer has others."""
    return bool(getattr(module, name).shape[0] == size)
