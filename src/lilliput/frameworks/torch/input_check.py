"""Check that the inputs of a captured graph are like those it was captured for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from lilliput.errors import StageError
from lilliput.frameworks.torch.capture import Exported
from lilliput.graph.analysis import Analysis
from lilliput.graph.labels import Flags


@dataclass(frozen=True)
class InputCheck:
    """A hook that raises for inputs for which the captured code might behave differently.

    Parameters
    ----------
    structure : object
        The nesting of the example inputs.
    leaves : tuple
        For each of them its value, or the smallest and largest size of each dimension.
    """

    structure: Any
    leaves: tuple[Any, ...]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Raise unless every argument is one that the graph was captured for."""
        leaves, structure = tree_flatten((args, kwargs))
        if structure != self.structure:
            raise StageError(
                "this part of the model runs as a graph that was captured from a call with different "
                "arguments; shrink the model with realistic example inputs."
            )
        for received, expected in zip(leaves, self.leaves, strict=True):
            if not isinstance(expected, Sizes):
                fits = type(received) is type(expected) and received == expected
            else:
                sizes = getattr(received, "shape", ())
                fits = len(sizes) == len(expected.bounds) and all(
                    low <= n <= high for n, (low, high) in zip(sizes, expected.bounds, strict=True)
                )
            if not fits:
                shown = tuple(received.shape) if isinstance(received, Tensor) else received
                raise StageError(
                    f"this part of the model runs as a graph, captured for {expected}, and received "
                    f"{shown}; shrink the model with realistic example inputs."
                )


@dataclass(frozen=True)
class Sizes:
    """The smallest and largest size of each dimension of a tensor."""

    bounds: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        sizes = [str(low) if low == high else f"{low} to {high}" for low, high in self.bounds]
        return f"a tensor of sizes ({', '.join(sizes)})"


def input_check_of(exported: Exported, analysis: Analysis, removed: Flags) -> InputCheck:
    """Return the check that a graph's inputs are like those it was captured for."""
    leaves, structure = tree_flatten(exported.call)
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder"]
    values = (analysis.walk.value(tensor) for tensor in analysis.graph.inputs)
    found: list[Any] = []
    for node, leaf in zip(nodes, leaves, strict=True):
        value = next(values) if isinstance(node.meta.get("val"), Tensor) else None
        if not isinstance(leaf, Tensor) or value is None:
            found.append(leaf)
            continue
        bounds: list[tuple[int, float]] = []
        for d, size in enumerate(node.meta["val"].shape):
            kept = int(analysis.kept(value, d, removed).sum())
            is_open = isinstance(size, torch.SymInt) and not size.node.expr.is_number
            limits = exported.ranges.get(size.node.expr) if is_open else None
            if limits is None:
                bounds.append((kept, kept))
            else:
                # torch reports "from 2" for every dynamic size, and means any
                low = int(limits.lower)
                bounds.append((low if low > 2 else 1, float(limits.upper)))
        found.append(Sizes(tuple(bounds)))
    return InputCheck(structure, tuple(found))
