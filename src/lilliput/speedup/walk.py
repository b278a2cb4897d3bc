"""One pass over a captured graph: each op moves labels from its inputs to its outputs."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from lilliput.errors import UnsupportedModelError
from lilliput.frames import is_code_of
from lilliput.speedup.axes import FIXED, Axes, Axis
from lilliput.speedup.labels import Indices, Labels
from lilliput.speedup.trails import Shuffled, Trail

log = logging.getLogger("lilliput")

IS_OUTPUT = "they are the model's output"  # a reason to stay

# What a rule raises at an op that is called in a way it did not expect, or nested too deeply.
_FAILURES = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)

Origin = tuple[str, int]  # a parameter, and one of its dimensions


@dataclass(frozen=True, eq=False)
class Fold:
    """The channels of an axis, cut into several dimensions of which one gets smaller."""

    dim: int
    axis: Axis


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the graph: its shape, the axis of each dimension, and whose parameter it is."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    origin: tuple[Origin | None, ...] = ()
    is_parameter: bool = False  # at most with its dimensions in another order; masks reach it
    fold: Fold | None = None  # amid a shuffle

    @classmethod
    def fixed(cls, shape: Sequence[int]) -> Value:
        """Return a tensor of which nothing can be removed."""
        return cls(tuple(shape), (FIXED,) * len(shape))


@dataclass(frozen=True, eq=False)
class Statistic:
    """A place where removing channels changes a number computed over all of them."""

    node: fx.Node
    columns: tuple[Indices, ...]
    what: str


@dataclass(frozen=True, eq=False)
class Balance:
    """Rows of labels of which equally many must be kept."""

    rows: Indices  # 2-D
    trail: Trail | None = None


Rule = Callable[["Walk", SimpleNamespace], Any]


@dataclass(eq=False)
class Walk:
    """What is known while walking over the nodes; rules read arguments and return values."""

    graph: fx.Graph
    tensors: dict[str, Tensor]  # by the name that the graph uses
    names: dict[str, str]  # from those names to the canonical ones
    labels: Labels
    find_rule: Callable[[fx.Node], Rule | None]
    is_part: bool = False  # of a model: what goes in and comes out may be cut as well
    values: dict[fx.Node, Any] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    balances: list[Balance] = field(default_factory=list)
    ragged: dict[str, Indices] = field(default_factory=dict)  # parameter -> labels (groups, inputs)
    outputs: set[Origin] = field(default_factory=set)  # dimensions that make channels
    features: list[Indices] = field(default_factory=list)  # labels that lie within attention heads
    copies: list[Indices] = field(default_factory=list)  # labels of dimensions made by expanding
    unknown: dict[str, str] = field(default_factory=dict)  # ops without a rule, and where
    grids: frozenset[str] = frozenset()  # shuffles that are taken view by view
    shuffled: dict[str, Shuffled] = field(default_factory=dict)  # by the op that begins it
    ragged_trails: dict[str, Trail | None] = field(default_factory=dict)
    ahead: dict[fx.Node, Any] = field(default_factory=dict)  # what a rule knows of later ops

    def __post_init__(self) -> None:
        self.axes = Axes(self.labels)
        self.node: fx.Node = next(iter(self.graph.nodes))

    def run(self) -> None:
        """Visit every node once."""
        for node in self.graph.nodes:
            self.node = node
            self.axes.reason = f"they meet what cannot shrink, in {op_name(node)} at {place(node)}"
            value = self.values[node] = self._visit(node)
            for item in self.operands(value):
                for axis, size in zip(item.axes, item.shape, strict=True):
                    if size == 1 and axis:
                        self.pin(axis, because="one of them is used on its own")

    def _visit(self, node: fx.Node) -> Any:
        if node in self.ahead:
            return self.ahead[node]
        if node.op == "placeholder":
            return _map_shapes(node, self._input)
        if node.op == "get_attr":
            return self._parameter(node)
        if node.op == "output":
            if self.is_part:
                return None
            for value in self.operands(node.args):
                for axis in value.axes:
                    self.axes.pin(axis, IS_OUTPUT)
            return None
        if node.target is operator.getitem:
            sequence = self.resolve(node.args[0])
            at: Any = node.args[1]
            return sequence[at] if isinstance(sequence, list) else None
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int)):
            return None  # a size, computed
        rule = self.find_rule(node)
        if rule is None:
            return self.give_up(node)
        try:
            return rule(self, self.bind(node))
        except _FAILURES as error:
            log.debug("speedup: %s at %s: %r", op_name(node), place(node), error)
            return self.give_up(node)

    def _input(self, shape: Sequence[int]) -> Value:
        if not self.is_part:
            return Value.fixed(shape)
        axes = tuple(self.fresh(("input", d), n) for d, n in enumerate(shape))
        return Value(tuple(shape), axes)

    def give_up(self, node: fx.Node) -> Any:
        """Pin everything that an op without a rule sees."""
        for value in self.operands((node.args, node.kwargs)):
            for axis in value.axes:
                self.axes.pin(axis)
        self.unknown.setdefault(op_name(node), place(node))
        return _map_shapes(node, Value.fixed)

    def _parameter(self, node: fx.Node) -> Any:
        tensor = self.tensors.get(str(node.target))
        if tensor is None:
            return None
        shape = tuple(tensor.shape)
        name = self.names.get(str(node.target))
        if name is None or not tensor.is_floating_point():
            return Value.fixed(shape)
        masked = isinstance(tensor, nn.Parameter)
        axes = tuple(self.axes.fresh((name, d), n, masked) for d, n in enumerate(shape))
        return Value(shape, axes, tuple((name, d) for d in range(len(shape))), masked)

    def bind(self, node: fx.Node) -> SimpleNamespace:
        """Return an op's arguments by name, nodes replaced by what is known of them."""
        given: dict[str, Any] = {}
        arguments = node.target._schema.arguments  # type: ignore[union-attr]
        for i, argument in enumerate(arguments):
            if i < len(node.args):
                given[argument.name] = node.args[i]
            else:
                default = argument.default_value if argument.has_default_value() else None
                given[argument.name] = node.kwargs.get(argument.name, default)
        names = {name: "input" if name == "self" else name for name in given}
        bound = {names[name]: self.resolve(value) for name, value in given.items()}
        return SimpleNamespace(**bound, shapes=_map_shapes(node, tuple))

    def resolve(self, argument: Any) -> Any:
        """Return what is known of an argument: values for nodes, hints for symbolic sizes."""
        if isinstance(argument, fx.Node):
            value = self.values.get(argument)
            if value is None and "val" in argument.meta:
                held = argument.meta["val"]
                return hint(held) if not isinstance(held, Tensor) else Value.fixed(shape_of(held))
            return value
        if isinstance(argument, (list, tuple)):
            return [self.resolve(x) for x in argument]
        return argument

    def operands(self, arguments: Any) -> Iterator[Value]:
        """Yield every tensor among arguments."""
        for argument in _flatten(arguments):
            value = self.resolve(argument) if isinstance(argument, fx.Node) else argument
            for item in _flatten(value):
                if isinstance(item, Value):
                    yield item

    @cached_property
    def calls(self) -> dict[str, list[fx.Node]]:
        """The ops in each call of each module, those of the modules that it calls included."""
        found: dict[str, list[fx.Node]] = {}
        for node in self.graph.nodes:
            for key in node.meta.get("nn_module_stack") or ():
                found.setdefault(key, []).append(node)
        return found

    # -- the vocabulary of rules -------------------------------------------------------------------

    def fresh(self, what: Any, size: int, is_zero: bool = False) -> Axis:
        """Return channels that follow whomever they meet."""
        return self.axes.fresh((self.node.name, what), size, is_zero)

    def split(self, axis: Axis, sizes: Sequence[int], what: Any = "split") -> list[Axis]:
        """Cut a dimension into several."""
        return self.axes.split(axis, sizes, (self.node.name, what))

    def shuffle(self, axis: Axis, sizes: Sequence[int], order: Sequence[int]) -> Axis | None:
        """Cut a dimension into several and put them together in another order, None if it cannot."""
        made = None
        if self.node.name not in self.grids:
            made = self.axes.shuffle(axis, sizes, order)
        if made is not None and isinstance(made[0].trail, Shuffled):
            self.shuffled[self.node.name] = made[0].trail
        return made

    def same(self, *axes: Axis | None) -> None:
        """Make dimensions of equal length lose the same indices."""
        given = [axis for axis in axes if axis is not None]
        for axis in given[1:]:
            self.axes.unify(given[0], axis)

    def pin(self, *axes: Axis, because: str = "") -> None:
        """Keep all of these."""
        reason = f"{because} ({op_name(self.node)} at {place(self.node)})" if because else ""
        for axis in axes:
            self.axes.pin(axis, reason)

    def changes(self, axis: Axis, what: str) -> None:
        """Note that a statistic over this dimension will be of fewer channels."""
        columns = tuple(column.labels for column in self.axes.tidy(axis))
        if columns:
            self.statistics.append(Statistic(self.node, columns, what))

    def balance(self, axis: Axis, rows: int) -> bool:
        """Ask for equally many channels in each row of an axis; False if it is a product."""
        columns = self.axes.tidy(axis)
        if len(columns) == 1:
            labels = columns[0].labels.reshape(rows, -1)
            self.balances.append(Balance(labels, columns[0].trail))
        return len(columns) < 2

    def makes(self, value: Value, dim: int) -> None:
        """Note that a dimension of a parameter makes channels."""
        if value.origin and (origin := value.origin[dim]) is not None:
            self.outputs.add(origin)


def zero(axis: Axis, is_zero: bool = True) -> Axis:
    """Return the axis with its removed values known to be zero, or not."""
    return tuple(replace(column, is_zero=is_zero) for column in axis)


def is_zero(axis: Axis) -> bool:
    """Whether the values at removed indices are zero."""
    return all(column.is_zero for column in axis)


def op_name(node: fx.Node) -> str:
    """Return the name of an op without overload and in-place mark: ``add_.Tensor`` is ``add``."""
    schema = getattr(node.target, "_schema", None)
    name = str(node.target) if schema is None else schema.name.split("::")[-1]
    return name if name.startswith("__") else name.rstrip("_") or name


def place(node: fx.Node) -> str:
    """Return where in the user's code an op stands: the module, and the line if known."""
    path = module_path(node)
    frames = re.findall(r'File "(.*)", line (\d+)', node.stack_trace or "")
    own = [frame for frame in frames if not is_code_of(frame[0], torch)]
    where = path or "the model"
    return f"{where} ({Path(own[-1][0]).name}:{own[-1][1]})" if own else where


def module_path(node: fx.Node) -> str:
    """Return the path of the module whose forward contains the op."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def hint(value: Any) -> Any:
    """Return a symbolic size as the number it had at capture."""
    expression = getattr(value, "node", None)
    if expression is not None and expression.hint is None:
        raise UnsupportedModelError(
            "some sizes in the model depend on its data (x[x > 0], nonzero, unique): what is computed "
            "there cannot be followed. Leave that step out of the model that is pruned."
        )
    return int(expression.hint) if expression is not None else value


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return a shape as plain numbers."""
    return tuple(int(hint(n)) for n in tensor.shape)


def _map_shapes(node: fx.Node, make: Callable[[Any], Any]) -> Any:
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return make(shape_of(value))
    if isinstance(value, (list, tuple)):
        return [make(shape_of(x)) if isinstance(x, Tensor) else None for x in value]
    return None


def _flatten(arguments: Any) -> Iterator[Any]:
    if isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from _flatten(argument)
    elif isinstance(arguments, dict):
        yield from _flatten(list(arguments.values()))
    else:
        yield arguments
