"""Which channels belong together: walk over the graph until nothing needs refining any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lilliput.speedup.capture import Captured, as_inputs, read
from lilliput.speedup.labels import Flags, Indices, Labels
from lilliput.speedup.rules import find_rule
from lilliput.speedup.shuffles import find_stages
from lilliput.speedup.stages import Stage
from lilliput.speedup.walk import Value, Walk

_PASSES = 8


@dataclass(frozen=True, eq=False)
class Analysis:
    """A captured model, and the labels of everything in it."""

    captured: Captured
    walk: Walk
    axes: dict[str, Value]  # of each parameter and buffer, by its first name
    stages: tuple[Stage, ...] = ()  # channels that shuffles mix

    def columns(self, name: str, dim: int) -> list[Indices]:
        """Return the classes along a dimension of a parameter, 0 where they are pinned."""
        walk = self.walk
        return [walk.axes.roots(c) for c in walk.axes.tidy(self.axes[name].axes[dim])]

    def reasons(self, name: str) -> list[str]:
        """Return why parts of a parameter are pinned."""
        labels = self.walk.labels
        axes = self.axes[name].axes if name in self.axes else ()
        found = [x for axis in axes for c in axis for x in labels.expand(c.labels)]
        return [reason for x in found if (reason := labels.reason(int(x[0])))]

    def kept(self, value: Value, dim: int, removed: Flags) -> Flags:
        """Return which indices along a dimension stay, given which classes are removed."""
        if value.fold is not None and value.fold.dim == dim:
            whole = Value((len(value.fold.axis[0].labels),), (value.fold.axis,))
            share = self.kept(whole, 0, removed).mean()
            flags: Flags = np.arange(value.shape[dim]) < round(share * value.shape[dim])
            return flags
        keep = np.ones(value.shape[dim], bool)
        for column in self.walk.axes.tidy(value.axes[dim]):
            keep &= ~removed[self.walk.labels.find(column.labels)]
        return keep


class Kept:
    """What stays of values once classes are removed: which indices, how many."""

    def __init__(self, analysis: Analysis, removed: Flags) -> None:
        self.analysis, self.removed = analysis, removed

    def flags(self, value: Value, dim: int) -> Flags:
        """Return which indices along a dimension stay."""
        return self.analysis.kept(value, dim % len(value.shape), self.removed)

    def size(self, value: Value, dim: int) -> int:
        """Return how many indices along a dimension stay."""
        return int(self.flags(value, dim).sum())

    def shape(self, value: Value) -> list[int]:
        """Return the shape of what stays."""
        return [self.size(value, d) for d in range(len(value.shape))]


def analyse(model: nn.Module, example_inputs: Any) -> Analysis:
    """Read the graph of a plain model in eval mode, and label it."""
    return label(read(model, *as_inputs(example_inputs)))


def label(captured: Captured, is_part: bool = False) -> Analysis:
    """Label a graph; the inputs and outputs of a part of a model may be cut."""
    labels, grids, refinements = Labels(), frozenset[str](), 0
    graph = captured.graph
    while True:
        labels.restart()
        labels.may_refine = refinements < _PASSES - 1  # views that never agree: pinned at last
        walk = Walk(graph, captured.tensors, captured.names, labels, find_rule, is_part)
        walk.grids = grids
        walk.run()
        if labels.refined and labels.may_refine:
            refinements += 1
            continue
        stages, failed = find_stages(walk)
        if not failed:
            break
        grids |= failed
    axes: dict[str, Value] = {}
    for node, value in walk.values.items():
        if node.op == "get_attr" and isinstance(value, Value) and any(value.origin):
            axes.setdefault(captured.names[str(node.target)], value)
    return Analysis(captured, walk, axes, tuple(stages))
