"""The channel groups of a Keras model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras

from lilliput.backends.keras.graph import function_of
from lilliput.graph.collect import find_pinned, form_groups
from lilliput.graph.groups import ChannelGroups, Group, Removed
from lilliput.speedup.keras.analysis import Analysis, analyse
from lilliput.speedup.keras.costs import count_macs, count_parameters


@dataclass(frozen=True, eq=False, repr=False)
class KerasChannelGroups(ChannelGroups):
    """All channel groups of a Keras model, and what cannot be removed."""

    def count_parameters(self, removed: Removed | None = None) -> int:
        """Return how many trained weights the model has without the removed units."""
        return count_parameters(self.analysis, self.flags(removed or {}))

    def count_macs(self, removed: Removed | None = None) -> int:
        """Return how many multiplications a forward takes without them, for a batch of one."""
        return count_macs(self.analysis, self.flags(removed or {}))


def channel_groups(model: Any, example_inputs: Any = None) -> ChannelGroups:
    """Return which channels of a model can be removed, and what goes with each of them.

    Parameters
    ----------
    model : keras.Model
        A built model; it is only read. A subclassed one has to run on symbolic tensors.
    example_inputs : array or structure of arrays, optional
        What the model is called with. Needed for subclassed models, and to count operations where a
        model leaves sizes open.

    Examples
    --------
    >>> import keras
    >>> layers = [keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(2, name="head")]
    >>> print(channel_groups(keras.Sequential([keras.Input((4,)), *layers])))
    1 channel group, 8 units can be removed
    hidden.kernel: 8 units
      made by hidden.kernel
      also in hidden.bias, head.kernel
    1 that stay:
      head.kernel (dim 1, 2): they are the model's output
    """
    return collect(analyse(model, example_inputs))


def find_groups(model: Any, example_inputs: Any = None) -> ChannelGroups | None:
    """Return the groups of a model, None if example inputs would be needed to know them."""
    if example_inputs is None and function_of(model) is None:
        return None
    return channel_groups(model, example_inputs)


def collect(analysis: Analysis) -> ChannelGroups:
    """Return the groups of an analysed model."""
    groups = form_groups(analysis, analysis.columns())
    groups = [_with_filters(group, analysis) for group in groups]
    pinned = find_pinned(analysis, groups)
    unreached = _unreached(analysis)
    return KerasChannelGroups(tuple(groups), pinned, unreached, analysis.walk.unknown, analysis)


def _with_filters(group: Group, analysis: Analysis) -> Group:
    """Say of the inputs of grouped convolutions where the filters are counted."""
    ragged = analysis.walk.ragged
    slices = [
        replace(s, filters=ragged[s.tensor].filters) if s.units.ndim == 2 else s
        for s in group.slices
    ]
    return replace(group, slices=tuple(slices))


def _unreached(analysis: Analysis) -> tuple[str, ...]:
    """Return the trained variables of layers that the graph never calls."""
    called = [n.operation for n in analysis.graph.nodes if isinstance(n.operation, keras.Layer)]
    inside = {id(inner) for layer in called for inner in layer._flatten_layers()}
    tensors = analysis.tensors
    paths = {path for path, layer in tensors.layers.items() if id(layer) in inside}
    trained = [name for name in tensors.variables if name in tensors.trained]
    return tuple(name for name in trained if name.rpartition(".")[0] not in paths)
