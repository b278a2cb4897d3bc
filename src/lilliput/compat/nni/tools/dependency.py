"""Layers that lose channels together, in NNI's form: sets of layer names.

The results come from the labels that ``channel_groups`` gives to every index of every parameter: two
layers depend on each other if they produce (or read) the same channel.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from lilliput.compat.nni.tools.filing import PathLike
from lilliput.compat.nni.tools.speedup import at_least_two
from lilliput.errors import ConfigError
from lilliput.files import write_atomically
from lilliput.frameworks.torch.capture import read
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.graph import to_graph
from lilliput.graph.analysis import Analysis, analyse

_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_TRANSPOSED = _CONVOLUTIONS[3:]


class Channels:
    """The channels that the convolutions and linear layers of a model produce and read, as labels."""

    def __init__(self, model: nn.Module, dummy_input: Any) -> None:
        if model is None or dummy_input is None:
            raise ConfigError(
                "a dependency needs model and dummy_input; a traced model is not used."
            )
        args, kwargs = as_inputs(at_least_two(dummy_input))
        self.plain = unwrapped(plain_copy(model, share=True))
        self.analysis: Analysis = analyse(to_graph(read(self.plain, args, kwargs)), is_part=True)
        self.layers = {
            name: module
            for name, module in self.plain.named_modules()
            if isinstance(module, (*_CONVOLUTIONS, nn.Linear)) and self._weight(name) is not None
        }

    def _weight(self, layer: str) -> str | None:
        name = f"{layer}.weight" if layer else "weight"
        return name if name in self.analysis.axes else None

    def made(self, layer: str) -> list[Any]:
        """Return the labels of a layer's output channels, in order; one array per factor."""
        return self._along(self._weight(layer), self.out_axis(layer))

    def out_axis(self, layer: str) -> int:
        """Return the dimension of a layer's weight that counts its output channels."""
        return int(isinstance(self.layers[layer], _TRANSPOSED))

    def read(self, layer: str) -> list[Any]:
        """Return the labels of a layer's input channels."""
        module, name = self.layers[layer], self._weight(layer)
        walk = self.analysis.walk
        if name in walk.ragged:
            return [walk.labels.find(walk.ragged[name].rows.ravel())]
        is_transposed = isinstance(module, _TRANSPOSED)
        is_depthwise = getattr(module, "groups", 1) > 1
        return self._along(name, 0 if is_transposed or is_depthwise else 1)

    def _along(self, name: Any, dim: int) -> list[Any]:
        labels = self.analysis.walk.labels
        axis = self.analysis.axes[name].axes[dim]
        return [labels.find(x) for column in axis for x in labels.expand(column.labels)]

    def joined(self) -> Iterator[list[Any]]:
        """Yield the labels of the parts of each concatenation of channels."""
        walk = self.analysis.walk
        for op in self.analysis.graph.ops:
            if op.name != "cat":
                continue
            joined = walk.bind(op)
            columns = [column for part in joined.tensors for column in part.axes[joined.dim]]
            yield [walk.labels.find(x) for c in columns for x in walk.labels.expand(c.labels)]


class Dependency:
    """The common part of NNI's dependencies."""

    header: tuple[str, ...] = ("Dependency Set", "Layers")

    def __init__(
        self, model: Any = None, dummy_input: Any = None, traced_model: Any = None, **_: Any
    ) -> None:
        self.channels = Channels(model, dummy_input)
        self.dependency: dict[str, Any] = {}
        self.build_dependency()

    def build_dependency(self) -> Any:
        """Find the dependencies."""
        raise NotImplementedError

    def rows(self) -> list[list[Any]]:
        """Return the rows that :meth:`export` writes."""
        sets = enumerate(self.dependency_sets, 1)
        return [[f"Set {number}", *self._in_order(names)] for number, names in sets]

    @property
    def dependency_sets(self) -> Any:
        """The sets, each once, in the order of the model; a single layer is a set as well."""
        sets: list[set[str]] = []
        for name in self.channels.layers:
            found = self.dependency.get(name, {name})
            if found not in sets:
                sets.append(found)
        return sets

    def export(self, filepath: PathLike) -> None:
        """Write the dependencies as a CSV file."""
        text = io.StringIO()
        csv.writer(text).writerows([self.header, *self.rows()])
        write_atomically(filepath, text.getvalue().encode())

    def _in_order(self, names: set[str]) -> list[str]:
        return [name for name in self.channels.layers if name in names]

    def _unite(self, labels: dict[str, list[Any]]) -> dict[str, set[str]]:
        """Return for each layer the layers that share a label with it, directly or indirectly."""
        sets = {name: {name} for name in labels}
        first: dict[int, str] = {}
        for name, columns in labels.items():
            for other in {first.setdefault(x, name) for x in _labels_in(columns)}:
                if sets[other] is not sets[name]:
                    sets[name] |= sets[other]
                    for member in sets[name]:
                        sets[member] = sets[name]
        return sets


class ChannelDependency(Dependency):
    """Layers whose output channels can only be removed together.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, groups=4))
    >>> sorted(ChannelDependency(model, torch.zeros(1, 3, 2, 2)).dependency_sets[0])
    ['0', '2']
    """

    def build_dependency(self) -> dict[str, set[str]]:
        """Find the sets; ``dependency`` has them by layer."""
        labels = {name: self.channels.made(name) for name in self.channels.layers}
        self.dependency = {k: v for k, v in self._unite(labels).items() if len(v) > 1}
        return self.dependency


class InputChannelDependency(Dependency):
    """Layers that read the same channels, so that inputs can only be removed from all of them."""

    def build_dependency(self) -> dict[str, set[str]]:
        """Find the sets; ``dependency`` has them by layer."""
        labels = {name: self.channels.read(name) for name in self.channels.layers}
        self.dependency = self._unite(labels)
        return self.dependency


class CatPaddingDependency(Dependency):
    """Layers whose outputs are concatenated."""

    def build_dependency(self) -> dict[str, set[str]]:
        """Find the sets; ``dependency`` has them by layer."""
        made = {name: self.channels.made(name) for name in self.channels.layers}
        for parts in self.channels.joined():
            inside = {int(x) for part in parts for x in part}
            names = {n for n, columns in made.items() if inside & _labels_in(columns)}
            for name in list(names):
                names |= self.dependency.get(name, set())
            if len(names) > 1:
                self.dependency |= dict.fromkeys(names, names)
        return self.dependency

    @property
    def dependency_sets(self) -> list[set[str]]:
        """The sets, each once."""
        found: list[set[str]] = []
        for names in self.dependency.values():
            if names not in found:
                found.append(names)
        return found


class GroupDependency(Dependency):
    """The number of equal parts into which the output channels of a convolution must be divisible."""

    header = ("Conv Layer Name", "Group")

    def build_dependency(self) -> dict[str, int]:
        """Find the numbers: a layer's own groups, and those of the convolutions that read it."""
        layers = self.channels.layers
        convolutions = {k: m for k, m in layers.items() if isinstance(m, _CONVOLUTIONS)}
        self.dependency = {name: int(m.groups) for name, m in convolutions.items()}
        made = {name: _labels_in(self.channels.made(name)) for name in convolutions}
        for reader, module in convolutions.items():
            read = _labels_in(self.channels.read(reader)) if module.groups > 1 else set()
            for name in convolutions:
                if name != reader and made[name] & read:
                    self.dependency[name] = max(self.dependency[name], int(module.groups))
        return self.dependency

    @property
    def dependency_sets(self) -> dict[str, int]:
        """The same as ``dependency``."""
        return self.dependency

    def rows(self) -> list[list[Any]]:
        """Return the rows that :meth:`export` writes."""
        return [[name, groups] for name, groups in self.dependency.items()]


def not_safe_to_prune(model: nn.Module, dummy_input: Any) -> list[str]:
    """Return the layers whose channels cannot be removed, except those of the model's output.

    They need not be excluded: their channels are always kept.
    """
    from lilliput.graph.walk import IS_OUTPUT
    from lilliput.speedup.channels import channel_groups

    groups = channel_groups(model, at_least_two(dummy_input))
    stays = {x.tensor.removesuffix(".weight") for x in groups.pinned if x.reason != IS_OUTPUT}
    kinds = (*_CONVOLUTIONS, nn.Linear)
    return [name for name, m in model.named_modules() if name in stays and isinstance(m, kinds)]


def _labels_in(columns: list[Any]) -> set[int]:
    return {int(x) for column in columns for x in np.unique(column) if x > 0}
