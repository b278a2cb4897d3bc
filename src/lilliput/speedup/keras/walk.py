"""One pass over the graph of a Keras model: each operation moves labels from its inputs to its outputs.

The same labels and axes as for torch. Masks cover a channel in the layers that make it and in those that
read it, so whatever an activation makes of a masked channel, the next layer multiplies it by zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lilliput.backends.keras.graph import Graph, Node
from lilliput.backends.keras.instrument import unshadowed
from lilliput.graph.axes import FIXED, Axes, Axis
from lilliput.graph.labels import Indices, Labels
from lilliput.speedup.keras.tensors import Tensors

log = logging.getLogger("lilliput")

Shape = tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor: its shape, the axis of each dimension, and its name if it is a variable of a layer."""

    shape: Shape
    axes: tuple[Axis, ...]
    name: str = ""

    @classmethod
    def fixed(cls, shape: Sequence[int | None]) -> Value:
        """Return a tensor of which nothing can be removed."""
        return cls(tuple(shape), (FIXED,) * len(shape))


@dataclass(frozen=True, eq=False)
class Balance:
    """Rows of labels of which equally many must be kept."""

    rows: Indices  # 2-D


@dataclass(frozen=True, eq=False)
class Ragged:
    """The inputs of a grouped convolution: which channels each group of filters reads."""

    rows: Indices  # labels, (groups, inputs per group)
    dim: int  # of the kernel, that counts inputs
    filters: int  # of the kernel, that counts filters


Rule = Callable[["Walk", Node], Any]


@dataclass(eq=False)
class Walk:
    """What is known while walking over the nodes; rules read inputs and return values."""

    graph: Graph
    tensors: Tensors
    labels: Labels
    find_rule: Callable[[Any], Rule | None]
    values: dict[int, Value] = field(default_factory=dict)
    parameters: dict[str, Value] = field(default_factory=dict)
    balances: list[Balance] = field(default_factory=list)
    ragged: dict[str, Ragged] = field(default_factory=dict)  # by kernel
    outputs: set[tuple[str, int]] = field(default_factory=set)  # dimensions that make channels
    unknown: dict[str, str] = field(default_factory=dict)  # operations without a rule, and where
    refused: dict[str, str] = field(default_factory=dict)  # layers without a rule, and why
    reshaped: dict[int, Value] = field(default_factory=dict)  # by layer, what it returned first
    features: tuple[Indices, ...] = ()  # Keras has no heads outside of its attention layers
    copies: tuple[Indices, ...] = ()

    def __post_init__(self) -> None:
        self.axes = Axes(self.labels)
        self.node: Node | None = None

    def run(self) -> None:
        """Visit every node once."""
        for number in self.graph.inputs:
            self.values[number] = Value.fixed(self.graph.shapes[number])
        for node in self.graph.nodes:
            self.node = node
            self.axes.reason = f"they meet what cannot shrink, in {place(node)}"
            made = self._visit(node)
            made = list(made) if isinstance(made, (list, tuple)) else [made]
            for number, value in zip(node.outputs, made, strict=True):
                self.values[number] = self._checked(value)
        for call in self.graph.calls:
            self._unite_calls(call)
        for number in self.graph.outputs:
            for axis in self.values[number].axes:
                self.axes.pin(axis, "they are the model's output")

    def _visit(self, node: Node) -> Any:
        rule = self.find_rule(node.operation)
        if rule is None:
            return self.give_up("no rule for it")
        try:
            return rule(self, node)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            log.debug("speedup: %s: %r", place(node), error)
            return self.give_up("called in a way that is not known")

    def _checked(self, value: Value) -> Value:
        for axis, size in zip(value.axes, value.shape, strict=True):
            if axis and (size is None or size == 1):
                self.pin(axis, because="one of them is used on its own")
        return value

    def _unite_calls(self, call: Any) -> None:
        """Let a model that is called several times get the same channels each time."""
        first = next(x for x in self.graph.calls if x.operation is call.operation)
        self.axes.reason = f"{call.path} is called with channels that cannot shrink"
        for ours, theirs in zip(call.inputs, first.inputs, strict=True):
            if ours != theirs:
                self.same_axes(self.values[ours], self.values[theirs])

    # -- the vocabulary of rules -------------------------------------------------------------------

    @property
    def layer(self) -> Any:
        """The layer or operation at hand."""
        return self.node.operation if self.node is not None else None

    def input(self, k: int = 0) -> Value:
        """Return an input of the operation at hand."""
        node = self.at_hand
        return self.values[node.inputs[k]]

    def inputs(self) -> list[Value]:
        """Return all inputs of the operation at hand."""
        return [self.values[number] for number in self.at_hand.inputs]

    def shape(self, k: int = 0) -> Shape:
        """Return the shape of an output of the operation at hand."""
        return self.graph.shapes[self.at_hand.outputs[k]]

    def parameter(self, attribute: str) -> Value | None:
        """Return a variable of the layer at hand, None if it has none of that name."""
        found = self.tensors.find(self.layer, attribute)
        if found is None:
            return None
        name, shape = found
        if name not in self.parameters:
            axes = tuple(self.axes.fresh((name, d), n) for d, n in enumerate(shape))
            self.parameters[name] = Value(shape, axes, name)
        return self.parameters[name]

    def give_up(self, why: str) -> list[Value]:
        """Pin everything that an operation reads; nothing that it makes can be removed."""
        node = self.at_hand
        for value in self.inputs():
            for axis in value.axes:
                self.axes.pin(axis, f"{place(node)}: {why}")
        if node.path:
            self.refused.setdefault(node.path, f"{place(node)}: {why}")
        self.unknown.setdefault(kind_of(node.operation), node.path or "the model")
        return [Value.fixed(self.graph.shapes[number]) for number in node.outputs]

    def same(self, *axes: Axis | None) -> None:
        """Make dimensions of equal length lose the same indices."""
        given = [axis for axis in axes if axis is not None]
        for axis in given[1:]:
            self.axes.unify(given[0], axis)

    def same_axes(self, a: Value, b: Value) -> None:
        """Make all dimensions of two tensors lose the same indices."""
        for left, right in zip(a.axes, b.axes, strict=True):
            self.same(left, right)

    def pin(self, *axes: Axis, because: str) -> None:
        """Keep all of these."""
        for axis in axes:
            self.axes.pin(axis, f"{because} ({place(self.at_hand)})")

    def split(self, axis: Axis, sizes: Sequence[int], what: Hashable = "split") -> list[Axis]:
        """Cut a dimension into several."""
        return self.axes.split(axis, sizes, (self.at_hand.outputs, what))

    def makes(self, value: Value, dim: int) -> Axis:
        """Note that a dimension of a variable makes channels; return them."""
        self.outputs.add((value.name, dim % len(value.shape)))
        return value.axes[dim]

    def balance(self, axis: Axis, rows: int) -> None:
        """Ask for equally many channels in each row of an axis of one column."""
        for column in self.axes.tidy(axis):
            self.balances.append(Balance(column.labels.reshape(rows, -1)))

    @property
    def at_hand(self) -> Node:
        """The call at hand."""
        if self.node is None:
            raise ValueError("no operation is at hand")
        return self.node


def kind_of(operation: Any) -> str:
    """Return the name of the class that an operation has in the user's code."""
    return unshadowed(type(operation)).__name__


def place(node: Node) -> str:
    """Return what runs, and where: ``Softmax at block/act``."""
    where = node.path or (node.scopes[-1] if node.scopes else "")
    return f"{kind_of(node.operation)} at {where}" if where else kind_of(node.operation)
