"""One pass over a graph: each op moves labels from its inputs to its outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import FIXED, Axes, Axis
from lilliput.graph.ir import Graph, Op, Parameter, Tensor, flatten
from lilliput.graph.labels import Indices, Labels
from lilliput.graph.trails import Shuffled, Trail

log = logging.getLogger("lilliput")

IS_OUTPUT = "they are the model's output"  # a reason to pin channels

# Raised by a rule for an op with unexpected arguments, or nested too deeply.
_FAILURES = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)

Origin = tuple[str, int]  # a parameter, and one of its dimensions


@dataclass(frozen=True, eq=False)
class Fold:
    """The channels of an axis, split into several dimensions of which one shrinks."""

    dim: int
    axis: Axis


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the graph: its shape, the axis of each dimension, and the parameter it comes from."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    origin: tuple[Origin | None, ...] = ()
    is_parameter: bool = False  # possibly transposed; masks apply to it
    fold: Fold | None = None  # in the middle of a shuffle

    @classmethod
    def fixed(cls, shape: Sequence[int]) -> Value:
        """Return a tensor of which nothing can be removed."""
        return cls(tuple(shape), (FIXED,) * len(shape))


@dataclass(frozen=True, eq=False)
class Statistic:
    """An op where removing channels changes a number computed over all of them."""

    op: Op
    columns: tuple[Indices, ...]
    what: str


@dataclass(frozen=True, eq=False)
class Balance:
    """Rows of labels that must keep equal numbers."""

    rows: Indices  # 2-D
    trail: Trail | None = None


@dataclass(frozen=True, eq=False)
class Ragged:
    """The inputs of a grouped convolution: which channels each group of filters reads."""

    rows: Indices  # labels, (groups, inputs per group)
    dim: int  # of the parameter, counting inputs
    filters: int  # of the parameter, counting filters
    trail: Trail | None = None


Rule = Callable[["Walk", SimpleNamespace], Any]


@dataclass(eq=False)
class Walk:
    """The state of a walk over the ops; rules read arguments and return values."""

    graph: Graph
    labels: Labels
    find_rule: Callable[[Op], Rule | None]
    is_part: bool = False  # of a model: its inputs and outputs may be cut as well
    values: dict[Tensor, Value] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    balances: list[Balance] = field(default_factory=list)
    ragged: dict[str, Ragged] = field(default_factory=dict)  # by parameter
    outputs: set[Origin] = field(default_factory=set)  # dimensions that produce channels
    features: list[Indices] = field(default_factory=list)  # labels within attention heads
    copies: list[Indices] = field(default_factory=list)  # labels of dimensions created by expanding
    unknown: dict[str, str] = field(default_factory=dict)  # ops without a rule, and where
    grids: frozenset[Op] = frozenset()  # shuffles that are handled view by view
    shuffled: dict[Op, Shuffled] = field(default_factory=dict)  # by their first op
    ahead: dict[Op, Value] = field(default_factory=dict)  # computed by rules of earlier ops

    def __post_init__(self) -> None:
        self.axes = Axes(self.labels)
        self.op = Op("", {})
        self._bound: dict[Op, SimpleNamespace] = {}

    def run(self) -> None:
        """Visit every op once."""
        for name, tensor in self.graph.parameters.items():
            self._enter(tensor, self._parameter(name, tensor))
        for number, tensor in enumerate(self.graph.inputs):
            self._enter(tensor, self._input(number, tensor))
        for op in self.graph.ops:
            self.op = op
            self.axes.reason = f"they are combined with something that cannot shrink, in {op}"
            made = self.ahead[op] if op in self.ahead else self._visit(op)
            for tensor, value in zip(flatten([op.results]), flatten([made]), strict=False):
                if tensor is not None and value is not None:
                    self._enter(tensor, value)
        for tensor in () if self.is_part else self.graph.outputs:
            for axis in self.value(tensor).axes:
                self.axes.pin(axis, IS_OUTPUT)

    def _enter(self, tensor: Tensor, value: Value) -> None:
        self.values[tensor] = value
        for axis, size in zip(value.axes, value.shape, strict=True):
            if size == 1 and axis:
                self.pin(axis, because="one of them is used individually")

    def _visit(self, op: Op) -> Any:
        rule = self.find_rule(op)
        if rule is None:
            return self.give_up()
        try:
            return rule(self, self.bind(op))
        except _FAILURES as error:
            log.debug("speedup: %s: %r", op, error)
            return self.give_up()

    def _input(self, number: int, tensor: Tensor) -> Value:
        if not self.is_part:
            return Value.fixed(tensor.shape)
        shape = tensor.shape
        axes = (self.axes.fresh(("input", number, d), n) for d, n in enumerate(shape))
        return Value(shape, tuple(axes))

    def _parameter(self, name: str, tensor: Tensor) -> Value:
        shape = tensor.shape
        masked = (tensor.parameter or Parameter(name)).is_trained
        axes = tuple(self.axes.fresh((name, d), n, masked) for d, n in enumerate(shape))
        return Value(shape, axes, tuple((name, d) for d in range(len(shape))), masked)

    def give_up(self, why: str = "") -> Any:
        """Pin everything that the current op reads."""
        op = self.op
        for tensor in op.tensors:
            for axis in self.value(tensor).axes:
                self.axes.pin(axis, f"{op}: {why}" if why else "")
        self.unknown.setdefault(op.title or op.name, op.place)
        made = [None if x is None else Value.fixed(x.shape) for x in flatten([op.results])]
        return made if isinstance(op.results, list) else made[0]

    def value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor."""
        found = self.values.get(tensor)
        return Value.fixed(tensor.shape) if found is None else found

    def result(self, op: Op) -> Any:
        """Return the value of the result of an op; a list if there are several, None if there is none."""
        made = [None if x is None else self.values.get(x) for x in flatten([op.results])]
        return made if isinstance(op.results, list) else made[0]

    def bind(self, op: Op) -> SimpleNamespace:
        """Return an op's arguments by name, with tensors replaced by their values."""
        if op not in self._bound:
            given = {name: self._resolve(x) for name, x in op.arguments.items()}
            self._bound[op] = SimpleNamespace(**given, shapes=op.shapes)
        return self._bound[op]

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, (list, tuple)):
            return [self._resolve(x) for x in argument]
        return argument

    # -- functions for rules -----------------------------------------------------------------------

    def fresh(self, what: Any, size: int, is_zero: bool = False) -> Axis:
        """Return new channels."""
        return self.axes.fresh((self.op.number, what), size, is_zero)

    def split(self, axis: Axis, sizes: Sequence[int], what: Any = "split") -> list[Axis]:
        """Split a dimension into several."""
        return self.axes.split(axis, sizes, (self.op.number, what))

    def shuffle(self, axis: Axis, sizes: Sequence[int], order: Sequence[int]) -> Axis | None:
        """Split a dimension into several and join them in another order, or return None."""
        made = None
        if self.op not in self.grids:
            made = self.axes.shuffle(axis, sizes, order)
        if made is not None and isinstance(made[0].trail, Shuffled):
            self.shuffled[self.op] = made[0].trail
        return made

    def same(self, *axes: Axis | None) -> None:
        """Make dimensions of equal length lose the same indices."""
        given = [axis for axis in axes if axis is not None]
        for axis in given[1:]:
            self.axes.unify(given[0], axis)

    def pin(self, *axes: Axis, because: str = "") -> None:
        """Pin all of these."""
        reason = f"{because} ({self.op})" if because else ""
        for axis in axes:
            self.axes.pin(axis, reason)

    def changes(self, axis: Axis, what: str) -> None:
        """Record that a statistic over this dimension will have fewer channels."""
        columns = tuple(column.labels for column in self.axes.tidy(axis))
        if columns:
            self.statistics.append(Statistic(self.op, columns, what))

    def balance(self, axis: Axis, rows: int) -> bool:
        """Require equally many channels in each row of an axis; False if it is a product."""
        columns = self.axes.tidy(axis)
        if len(columns) == 1:
            labels = columns[0].labels.reshape(rows, -1)
            self.balances.append(Balance(labels, columns[0].trail))
        return len(columns) < 2

    def makes(self, value: Value, dim: int) -> None:
        """Record that a dimension of a parameter produces channels."""
        if value.origin and (origin := value.origin[dim]) is not None:
            self.outputs.add(origin)


def zero(axis: Axis, is_zero: bool = True) -> Axis:
    """Return the axis with its removed values marked as zero, or not."""
    return tuple(replace(column, is_zero=is_zero) for column in axis)


def is_zero(axis: Axis) -> bool:
    """Whether the values at removed indices are zero."""
    return all(column.is_zero for column in axis)
