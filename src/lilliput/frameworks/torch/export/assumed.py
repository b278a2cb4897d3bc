"""The sizes for which a trace is valid, from torch's assumptions about dynamic sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lilliput.frameworks.exporting.sizes import BATCH, FEW, Assumed, Axis, OpenSizes, holds

_NEAR = 8  # of larger sizes, those near the example's


def open_sizes(program: Any, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> OpenSizes:
    """Return torch's assumptions about sizes in an exported program.

    Parameters
    ----------
    program : ExportedProgram
        The trace.
    values : list of tensor
        The inputs in the trace, in the order used by the axes.
    axes : list of Axis
        The requested dynamic sizes.
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
    """Return the pairs of a symbol and a number for which some size in a trace is the minimum."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    dims: Iterable[Any] = (x for v in values if isinstance(v, torch.Tensor) for x in v.shape)
    found = set()
    for size in {x.node.expr for x in dims if isinstance(x, torch.SymInt)}:
        for part in (x for x in size.atoms(*_functions(size)) if type(x).__name__ == "Min"):
            numbers = [int(x) for x in part.args if x.is_Integer]
            found |= {(x, number) for x in part.args if x.is_symbol for number in numbers}
    return found


def _functions(expression: Any) -> set[type]:
    """Return the types of all parts of an expression; at least one."""
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
    looked_at = FEW if axis.name == BATCH else _sizes_near(axis.size)
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
    """Return the conditions that some size violates, with the others as traced."""
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
        met = tuple(holds(condition, n) for n in looked_at)
        if not all(met):
            found.setdefault(met, condition)
    return tuple(found.values())


def _integer(limit: Any, otherwise: Any) -> Any:
    """Return a limit as a number, or the alternative if there is none."""
    try:
        return int(limit)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return otherwise
