"""Which channels of a Keras model belong together: walk until nothing needs refining any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from lilliput.backends.keras.graph import Graph, read_graph
from lilliput.graph.labels import Flags, Indices, Labels
from lilliput.graph.stages import Stage
from lilliput.speedup.keras.rules import find_rule
from lilliput.speedup.keras.sizes import with_sizes
from lilliput.speedup.keras.tensors import Tensors
from lilliput.speedup.keras.walk import Value, Walk

_PASSES = 8


@dataclass(frozen=True, eq=False)
class Analysis:
    """The graph of a model, and the labels of everything in it."""

    model: Any
    graph: Graph
    tensors: Tensors
    walk: Walk

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Channels that shuffles mix: in Keras these are taken view by view."""
        return ()

    @property
    def axes(self) -> dict[str, Value]:
        """The labels of each variable, by its first name."""
        return self.walk.parameters

    @property
    def captured(self) -> Any:
        """The names of variables, in the form in which the picture asks for them."""
        return SimpleNamespace(parameters=sorted(self.tensors.trained))

    def columns(self) -> dict[tuple[str, int], list[Indices]]:
        """Return the classes along each dimension of each variable, 0 where they are pinned."""
        walk, found = self.walk, {}
        for name, value in self.axes.items():
            ragged = walk.ragged.get(name)
            for dim, axis in enumerate(value.axes):
                if ragged is not None and dim == ragged.dim:
                    roots = walk.labels.find(ragged.rows.ravel()).reshape(ragged.rows.shape)
                    columns = [np.where(walk.labels.is_pinned(roots), 0, roots)]
                else:
                    columns = [walk.axes.roots(c) for c in walk.axes.tidy(axis)]
                if any(column.any() for column in columns):
                    found[name, dim] = columns
        return found

    def reasons(self, name: str) -> list[str]:
        """Return why parts of a variable are pinned."""
        labels = self.walk.labels
        if name in self.axes:
            axes = self.axes[name].axes
            parts = [x for axis in axes for c in axis for x in labels.expand(c.labels)]
            return [reason for x in parts if (reason := labels.reason(int(x[0])))]
        path = name.rpartition(".")[0]
        return [
            why for place, why in self.walk.refused.items() if f"{path}/".startswith(f"{place}/")
        ]

    def kept(self, value: Value, dim: int, removed: Flags) -> Flags:
        """Return which indices along a dimension stay, given which classes are removed."""
        size = value.shape[dim]
        keep = np.ones(1 if size is None else size, bool)
        for column in self.walk.axes.tidy(value.axes[dim]):
            keep &= ~removed[self.walk.labels.find(column.labels)]
        return keep

    def sizes(self, value: Value, removed: Flags) -> list[int]:
        """Return how many indices stay along each dimension; an open size counts as one."""
        ragged = self.walk.ragged.get(value.name)
        sizes = [int(self.kept(value, d, removed).sum()) for d in range(len(value.shape))]
        if ragged is not None:
            gone = removed[self.walk.labels.find(ragged.rows.ravel())]
            sizes[ragged.dim] = round(float((~gone).sum()) / len(ragged.rows))
        return sizes

    def touched(self, paths: set[str]) -> Indices:
        """Return the classes of everything that nodes inside these nested models read and make."""
        found = [np.zeros(0, np.int64)]
        for node in self.graph.nodes:
            if paths.intersection(node.scopes):
                values = [self.walk.values[x] for x in (*node.inputs, *node.outputs)]
                found += self._classes(values)
        for name, value in self.axes.items():
            if any(name.startswith(f"{path}/") for path in paths):
                found += self._classes([value])
        return np.unique(np.concatenate(found))

    def _classes(self, values: list[Value]) -> Iterator[Indices]:
        labels = self.walk.labels
        for value in values:
            for axis in value.axes:
                yield from (labels.find(c.labels) for c in self.walk.axes.tidy(axis))


def analyse(model: Any, example_inputs: Any = None) -> Analysis:
    """Read the graph of a model, and label it."""
    graph = with_sizes(read_graph(model, example_inputs), example_inputs)
    tensors, labels = Tensors(model), Labels()
    for number in range(_PASSES):
        labels.restart()
        labels.may_refine = number < _PASSES - 1  # views that never agree: pinned in the last pass
        walk = Walk(graph, tensors, labels, find_rule)
        walk.run()
        if not labels.refined:
            break
    return Analysis(model, graph, tensors, walk)
