"""Find channels that belong together: walk over the graph until no label needs refining."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from lilliput.graph.axes import Axis
from lilliput.graph.ir import Graph, Op
from lilliput.graph.labels import Flags, Indices, Labels
from lilliput.graph.rules import find_rule
from lilliput.graph.shuffles import find_stages
from lilliput.graph.stages import Stage
from lilliput.graph.walk import Value, Walk

_PASSES = 8


@dataclass(frozen=True, eq=False)
class Analysis:
    """The graph of a model, and the labels of everything in it."""

    graph: Graph
    walk: Walk
    axes: dict[str, Value]  # of each parameter and buffer, by its first name
    stages: tuple[Stage, ...] = ()  # channels mixed by shuffles
    _roots: dict[Axis, list[Indices]] = field(default_factory=dict, repr=False)

    def columns(self, name: str, dim: int) -> list[Indices]:
        """Return the classes along a dimension of a parameter, 0 for pinned ones."""
        walk = self.walk
        ragged = walk.ragged.get(name)
        if ragged is not None and dim == ragged.dim:
            roots = walk.labels.find(ragged.rows.ravel()).reshape(ragged.rows.shape)
            return [np.where(walk.labels.is_pinned(roots), 0, roots)]
        return [walk.axes.roots(c) for c in walk.axes.tidy(self.axes[name].axes[dim])]

    def reasons(self, name: str) -> list[str]:
        """Return why parts of a parameter are pinned."""
        labels = self.walk.labels
        axes = self.axes[name].axes if name in self.axes else ()
        found = [x for axis in axes for c in axis for x in labels.expand(c.labels)]
        return [reason for x in found if (reason := labels.reason(int(x[0])))]

    def kept(self, value: Value, dim: int, removed: Flags) -> Flags:
        """Return which indices along a dimension are kept, given the removed classes."""
        if value.fold is not None and value.fold.dim == dim:
            share = self._stays(value.fold.axis, len(value.fold.axis[0].labels), removed).mean()
            flags: Flags = np.arange(value.shape[dim]) < round(share * value.shape[dim])
            return flags
        return self._stays(value.axes[dim], value.shape[dim], removed)

    def _stays(self, axis: Axis, size: int, removed: Flags) -> Flags:
        keep: Flags = np.ones(size, bool)
        for roots in self.classes(axis):
            keep &= ~removed[roots]
        return keep

    def classes(self, axis: Axis) -> list[Indices]:
        """Return the classes along an axis; they no longer change once a graph is labelled."""
        found = self._roots.get(axis)
        if found is None:
            columns = self.walk.axes.tidy(axis)
            found = self._roots[axis] = [self.walk.labels.find(c.labels) for c in columns]
        return found


class Kept:
    """The indices and sizes of values that are kept when classes are removed."""

    def __init__(self, analysis: Analysis, removed: Flags) -> None:
        self.analysis, self.removed = analysis, removed

    def flags(self, value: Value, dim: int) -> Flags:
        """Return which indices along a dimension are kept."""
        return self.analysis.kept(value, dim % len(value.shape), self.removed)

    def size(self, value: Value, dim: int) -> int:
        """Return how many indices along a dimension are kept."""
        return int(self.flags(value, dim).sum())

    def shape(self, value: Value) -> list[int]:
        """Return the shape of the kept part."""
        return [self.size(value, d) for d in range(len(value.shape))]

    def numel(self, value: Value) -> int:
        """Return how many entries are kept."""
        return prod(self.shape(value))

    def parameter(self, name: str) -> list[int]:
        """Return the shape of a parameter's kept part; each group of filters has its own inputs."""
        sizes = self.shape(self.analysis.axes[name])
        ragged = self.analysis.walk.ragged.get(name)
        if ragged is not None:
            gone = self.removed[self.analysis.walk.labels.find(ragged.rows.ravel())]
            sizes[ragged.dim] = round(float((~gone).sum()) / len(ragged.rows))
        return sizes


def analyse(graph: Graph, is_part: bool = False) -> Analysis:
    """Label a graph; the inputs and outputs of a part of a model may be cut."""
    labels, grids, refinements = Labels(), frozenset[Op](), 0
    while True:
        labels.restart()
        labels.may_refine = refinements < _PASSES - 1  # conflicting views are pinned in the end
        walk = Walk(graph, labels, find_rule, is_part, grids=grids)
        walk.run()
        if labels.refined and labels.may_refine:
            refinements += 1
            continue
        stages, failed = find_stages(walk)
        if not failed:
            break
        grids |= failed
    axes = {name: walk.value(tensor) for name, tensor in graph.parameters.items()}
    axes = {name: value for name, value in axes.items() if any(value.origin)}
    return Analysis(graph, walk, axes, tuple(stages))
