"""Run a captured graph part by part, on all batches, with tensors that may change in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

from lilliput.frameworks.torch.capture import Exported
from lilliput.frameworks.torch.example_inputs import Inputs
from lilliput.frameworks.torch.nodes import shape_of

Values = dict[fx.Node, Any]


class Program:
    """The nodes of a captured graph in order, and how long each of their values is needed."""

    def __init__(self, captured: Exported) -> None:
        self.module = captured.module
        self.nodes: list[fx.Node] = list(captured.graph.nodes)
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.last_use = {n: max([self.place[u] for u in n.users], default=-1) for n in self.nodes}
        self._dying: dict[int, list[fx.Node]] = {}
        for node, place in self.last_use.items():
            self._dying.setdefault(place, []).append(node)

    def dying(self, place: int) -> Sequence[fx.Node]:
        """Return the nodes whose value is used for the last time at a position."""
        return self._dying.get(place, ())

    def live(self, place: int) -> list[fx.Node]:
        """Return the nodes whose values are computed before a position and needed from there on."""
        return [n for n in self.nodes[:place] if self.last_use[n] >= place and n.op != "get_attr"]

    def size(self, place: int) -> int:
        """Return the bytes of the values that are live at a position, for the captured inputs."""
        total = 0
        for node in self.live(place):
            values = tree_flatten(node.meta.get("val"))[0] if node.op != "placeholder" else ()
            total += sum(
                prod(shape_of(x)) * x.element_size() for x in values if isinstance(x, Tensor)
            )
        return total


class Replay:
    """One partial run of a program on all batches.

    Parameters
    ----------
    program : Program
        The graph.
    tensors : mapping of str to Tensor
        Parameters and buffers by the names that the graph uses; read each time they are needed.
    batches : sequence
        Arguments and named arguments of each call.
    """

    def __init__(
        self, program: Program, tensors: Mapping[str, Tensor], batches: Sequence[Inputs]
    ) -> None:
        self.program, self.tensors = program, tensors
        self.place = 0
        self._inputs = [tree_flatten(batch)[0] for batch in batches]
        self._saved: list[Values] = [{} for _ in batches]

    def advance(self, place: int) -> None:
        """Run all batches up to a position, to continue from there later."""
        live = set(self.program.live(place))
        for batch in range(len(self._saved)):
            values = self.run(batch, place)
            self._saved[batch] = {node: values[node] for node in live}
        self.place = place

    @torch.no_grad()
    def run(
        self,
        batch: int,
        place: int,
        before: Mapping[fx.Node, Callable[[Values], None]] | None = None,
        keep: Collection[fx.Node] = (),
    ) -> Values:
        """Return the values that are live after running a batch up to a position, and some others.

        ``before`` is called with the values that are live just before a node is run.
        """
        nodes = self.program.nodes[self.place : place]
        values = dict(self._saved[batch])
        if any(map(_writes, nodes)):  # into copies, preserving which tensors share memory
            values = dict(zip(values, copy.deepcopy([*values.values()]), strict=True))
        inputs = iter(self._inputs[batch])
        for index, node in enumerate(nodes, self.place):
            if node.op == "get_attr":
                continue
            if before is not None and node in before:
                before[node](values)
            values[node] = self._value(node, values, inputs)
            for dead in self.program.dying(index):
                if dead not in keep:
                    values.pop(dead, None)
        return values

    def _value(self, node: fx.Node, values: Values, inputs: Any) -> Any:
        if node.op == "placeholder":
            value = next(inputs)
            return value.clone() if isinstance(value, Tensor) else value
        if node.op == "output":
            return None
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs),
            lambda n: self._held(str(n.target)) if n.op == "get_attr" else values[n],
        )
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _held(self, name: str) -> Any:
        """Return the current value of a parameter or buffer."""
        return self.tensors[name] if name in self.tensors else attrgetter(name)(self.program.module)


def _writes(node: fx.Node) -> bool:
    """Whether an op changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
