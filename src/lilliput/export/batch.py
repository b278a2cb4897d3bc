"""Which batch sizes a trace is right for: torch notes what it assumed of sizes that are left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_TRIED = range(2, 65)  # sizes at which conditions such as "even" or "not 9" are looked for
_MOST = 3  # sizes to execute that a trace excludes


@dataclass(frozen=True)
class BatchSizes:
    """What torch assumed of the batch size: ranges, and conditions that hold for the example.

    A model that takes another way for more than 6 rows has the range 0 to 6; one that does so for odd
    numbers has the condition ``Eq(Mod(rows, 2), 0)``. A file holds only the way of the example.

    Parameters
    ----------
    ranges : tuple of (int, int or None)
        Smallest and largest size, None where there is no largest.
    conditions : tuple of sympy expressions
        In the symbol ``rows``.
    """

    ranges: tuple[tuple[int, int | None], ...] = ()
    conditions: tuple[Any, ...] = field(default=())

    def allows(self, rows: int) -> bool:
        """Whether the trace is right for a number of rows; torch itself sets 0 and 1 apart."""
        for low, high in self.ranges:
            if rows < (low if low > 2 else 1) or (high is not None and rows > high):
                return False
        return all(bool(x.subs(dict.fromkeys(x.free_symbols, rows))) for x in self.conditions)

    def to_try(self) -> list[int]:
        """Return sizes at the ends of the ranges, on both sides, and sizes that conditions exclude."""
        edges = [x for low, high in self.ranges for x in (low - 1, low, high, high and high + 1)]
        known = {x for x in edges if x is not None and x > 1 and self.ranges}
        excluded = [n for n in _TRIED if not self.allows(n) and n not in known]
        return sorted(known)[:4] + excluded[:_MOST]

    def __str__(self) -> str:
        parts = [f"{low} to {high} rows" for low, high in self.ranges if high is not None]
        parts += [f"{low} or more rows" for low, high in self.ranges if high is None and low > 2]
        return " and ".join([*parts, *(str(x) for x in self.conditions)])


def assumed_sizes(program: Any) -> BatchSizes:
    """Return what torch assumed of the batch size when it exported a program."""
    symbols = _open_symbols(program)
    if not symbols:
        return BatchSizes()
    ranges = set()
    for symbol, (_, limits) in symbols.items():
        limits = program.range_constraints.get(symbol, limits)
        low, high = _integer(limits.lower, 0), _integer(limits.upper, None)
        if high is not None or (low or 0) > 2:
            ranges.add((low or 0, high))
    axioms: Mapping[Any, Any] = {}
    for environment, _ in symbols.values():
        axioms = {**axioms, **getattr(environment, "axioms", {})}
    return BatchSizes(tuple(sorted(ranges, key=str)), _conditions(axioms, symbols))


def _open_symbols(program: Any) -> dict[Any, tuple[Any, Any]]:
    """Return the symbols of open input sizes, with their environment and their range there."""
    inputs = set(program.graph_signature.user_inputs)
    found: dict[Any, tuple[Any, Any]] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if node.name not in inputs or not isinstance(value, torch.Tensor) or not value.dim():
            continue
        size = value.shape[0]
        if isinstance(size, torch.SymInt):
            environment = size.node.shape_env
            for symbol in size.node.expr.free_symbols:
                found[symbol] = (environment, environment.var_to_range[symbol])
    return found


def _conditions(axioms: Mapping[Any, Any], symbols: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the conditions that some batch size does not meet, all inputs having the same number of rows."""
    rows = type(next(iter(symbols)))("rows", integer=True, positive=True)
    found: list[Any] = []
    for axiom, value in axioms.items():
        names: set[Any] = getattr(axiom, "free_symbols", set())
        if not bool(value) or not names or not names <= symbols.keys():
            continue
        condition = axiom.subs(dict.fromkeys(names, rows))
        if not condition.free_symbols or condition in found:
            continue
        if not all(bool(condition.subs(rows, n)) for n in _TRIED):
            found.append(condition)
    return tuple(_distinct(found, rows))


def _distinct(conditions: list[Any], rows: Any) -> list[Any]:
    """Return conditions that exclude different sizes: torch lists each in several forms."""
    by_sizes = {tuple(bool(x.subs(rows, n)) for n in _TRIED): x for x in reversed(conditions)}
    return list(reversed(by_sizes.values()))


def _integer(limit: Any, otherwise: Any) -> Any:
    """Return a limit as a number, and something else if there is none."""
    try:
        return int(limit)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return otherwise
