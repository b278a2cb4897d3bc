"""Which sizes a trace is right for: torch notes what it assumed of sizes that are left open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lilliput.export.sizes.axes import Axis
from lilliput.export.sizes.other_sizes import BATCH

_FEW = range(2, 65)  # sizes at which conditions such as "even" or "not 9" are looked for
_NEAR = 8  # of larger sizes, those around the example's
_MOST = 3  # sizes to execute that a trace excludes


@dataclass(frozen=True)
class Assumed:
    """What torch assumed of a size: ranges, and conditions that hold for the example.

    A model that takes another way for more than 6 rows has the range 0 to 6; one that does so for odd
    numbers has the condition ``Eq(Mod(rows, 2), 0)``. A file holds only the way of the example.

    Parameters
    ----------
    name : str
        What the size is called.
    ranges : tuple of (int, int or None)
        Smallest and largest size, None where there is no largest.
    conditions : tuple of sympy expressions
        In one symbol.
    looked_at : sequence of int
        Sizes at which conditions were looked for.
    ends : tuple of int
        Sizes at which something ends that the model holds, such as a table of positions.
    """

    name: str = "rows"
    ranges: tuple[tuple[int, int | None], ...] = ()
    conditions: tuple[Any, ...] = field(default=())
    looked_at: Sequence[int] = _FEW
    ends: tuple[int, ...] = ()

    def allows(self, size: int) -> bool:
        """Whether the trace is right for a size; torch itself sets 0 and 1 apart."""
        return self.is_in_range(size) and all(_holds(x, size) for x in self.conditions)

    def is_in_range(self, size: int) -> bool:
        """Whether a size is within all ranges."""
        return all(
            size >= (low if low > 2 else 1) and (high is None or size <= high)
            for low, high in self.ranges
        )

    def to_try(self) -> list[int]:
        """Return sizes at the ends of the ranges, on both sides, and sizes that conditions exclude."""
        edges = [x for low, high in self.ranges for x in (low - 1, low, high, high and high + 1)]
        known = {x for x in edges if x is not None and x > 1 and self.ranges}
        excluded = [n for n in self.looked_at if not self.allows(n) and n not in known]
        return sorted(known)[:4] + excluded[:_MOST]

    def __str__(self) -> str:
        parts = [f"{low} to {high} {self.name}" for low, high in self.ranges if high is not None]
        parts += [
            f"{low} or more {self.name}" for low, high in self.ranges if high is None and low > 2
        ]
        return " and ".join([*parts, *(str(x) for x in self.conditions)])


@dataclass(frozen=True)
class OpenSizes:
    """What became of the sizes that were to be open.

    Parameters
    ----------
    axes : tuple of Axis
        Those that are.
    constant : tuple of Axis
        Those that are constants in the trace.
    assumed : dict
        What torch assumed of each that is open, by name.
    """

    axes: tuple[Axis, ...] = ()
    constant: tuple[Axis, ...] = ()
    assumed: Mapping[str, Assumed] = field(default_factory=dict)


def open_sizes(program: Any, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> OpenSizes:
    """Return what torch made of sizes when it exported a program.

    Parameters
    ----------
    program : ExportedProgram
        The trace.
    values : list of tensor
        The inputs in the trace, in the order that the axes count in.
    axes : list of Axis
        What was to be open.
    """
    symbols: dict[str, list[Any]] = {}
    for axis in axes:
        sizes: list[Any] = [values[i].shape[dim] for i, dim in axis.places]
        found = [x.node.expr for x in sizes if isinstance(x, torch.SymInt)]
        if len(found) == len(sizes) and all(x.is_symbol for x in found):
            symbols[axis.name] = found
    open_ = tuple(axis for axis in axes if axis.name in symbols)
    constant = tuple(axis for axis in axes if axis.name not in symbols)
    traced = {x: max(axis.size, 2) for axis in open_ for x in symbols[axis.name]}
    environment = _environment(values)
    axioms = {} if environment is None else getattr(environment, "axioms", {})
    smaller = _smaller_of(program)
    assumed = {}
    for axis in open_:
        known = _assumed(axis, symbols[axis.name], program, environment, axioms, traced)
        ends = {end for symbol, end in smaller if symbol in symbols[axis.name]}
        assumed[axis.name] = replace(known, ends=tuple(sorted(ends)))
    return OpenSizes(open_, constant, assumed)


def _smaller_of(program: Any) -> set[tuple[Any, int]]:
    """Return the pairs of a symbol and a number of which some size in a trace is the smaller one."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    dims: Iterable[Any] = (x for v in values if isinstance(v, torch.Tensor) for x in v.shape)
    found = set()
    for size in {x.node.expr for x in dims if isinstance(x, torch.SymInt)}:
        for part in (x for x in size.atoms(*_functions(size)) if type(x).__name__ == "Min"):
            numbers = [int(x) for x in part.args if x.is_Integer]
            found |= {(x, number) for x in part.args if x.is_symbol for number in numbers}
    return found


def _functions(expression: Any) -> set[type]:
    """Return the types of all that an expression is made of; one type at least."""
    return {type(expression)} | {type(x) for x in expression.args}.union(
        *(_functions(x) for x in expression.args)
    )


def _environment(values: Sequence[torch.Tensor]) -> Any:
    dims: Iterable[Any] = (x for value in values for x in value.shape)
    sizes = (x for x in dims if isinstance(x, torch.SymInt))
    return next((x.node.shape_env for x in sizes), None)


def _assumed(
    axis: Axis,
    symbols: Sequence[Any],
    program: Any,
    environment: Any,
    axioms: Mapping[Any, Any],
    traced: Mapping[Any, int],
) -> Assumed:
    ranges = set()
    for symbol in symbols:
        limits = program.range_constraints.get(symbol, environment.var_to_range[symbol])
        low, high = _integer(limits.lower, 0), _integer(limits.upper, None)
        if high is not None or (low or 0) > 2:
            ranges.add((low or 0, high))
    word = "rows" if axis.name == BATCH else axis.name
    looked_at = _FEW if axis.name == BATCH else _sizes_near(axis.size)
    conditions = _conditions(axioms, symbols, traced, word, looked_at)
    return Assumed(word, tuple(sorted(ranges, key=str)), conditions, looked_at)


def _sizes_near(size: int) -> list[int]:
    return [*range(max(2, size - _NEAR), size + _NEAR + 1)]


def _conditions(
    axioms: Mapping[Any, Any],
    symbols: Sequence[Any],
    traced: Mapping[Any, int],
    word: str,
    looked_at: Sequence[int],
) -> tuple[Any, ...]:
    """Return the conditions that some size does not meet, the others being as they were traced."""
    own = type(symbols[0])(word, integer=True, positive=True)
    places = {**traced, **dict.fromkeys(symbols, own)}
    found: dict[tuple[bool, ...], Any] = {}  # by the sizes they exclude: torch lists several forms
    seen = set()
    for axiom, value in axioms.items():
        names: set[Any] = getattr(axiom, "free_symbols", set())
        if not bool(value) or names.isdisjoint(symbols) or not names <= places.keys():
            continue
        condition = axiom.subs(places)
        if not condition.free_symbols or condition in seen:
            continue
        seen.add(condition)
        holds = tuple(_holds(condition, n) for n in looked_at)
        if not all(holds):
            found.setdefault(holds, condition)
    return tuple(found.values())


def _holds(condition: Any, size: int) -> bool:
    return bool(condition.subs(dict.fromkeys(condition.free_symbols, size)))


def _integer(limit: Any, otherwise: Any) -> Any:
    """Return a limit as a number, and something else if there is none."""
    try:
        return int(limit)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return otherwise
