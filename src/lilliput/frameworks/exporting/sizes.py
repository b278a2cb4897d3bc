"""Dynamic input sizes of a file, and the sizes for which a trace is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lilliput.errors import ExportError

BATCH = "batch"
AxisPlace = tuple[int, int]  # which of the tensors in the inputs, and which of its axes
FEW = range(2, 65)  # sizes at which conditions such as "even" or "not 9" are looked for
_MOST = 3  # sizes to execute that a trace excludes


class TraceError(ExportError):
    """The framework cannot trace the model with these dynamic sizes."""


@dataclass(frozen=True)
class Axis:
    """One size that inputs share.

    Parameters
    ----------
    name : str
        What it is called in the file.
    places : tuple of (int, int)
        The tensors among the inputs, and their axes, that have this size.
    size : int
        Of the example.
    other : int
        Another size that the model takes, 0 if it takes none.
    hint : object
        What the framework's tracer is told of it, by default what ``is_asked`` says.
    is_asked : bool
        Whether the user asked for it: then it is refused, not fixed, if the model does not allow it.
    """

    name: str
    places: tuple[AxisPlace, ...]
    size: int
    other: int = 0
    hint: Any = None
    is_asked: bool = False


@dataclass(frozen=True)
class Assumed:
    """What a trace assumes of a size: ranges, and conditions that hold for the example.

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
    looked_at: Sequence[int] = FEW
    ends: tuple[int, ...] = ()

    def allows(self, size: int) -> bool:
        """Whether the trace is valid for a size; torch itself treats 0 and 1 specially."""
        return self.is_in_range(size) and all(holds(x, size) for x in self.conditions)

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
    """The outcome for the sizes that were requested to be dynamic.

    Parameters
    ----------
    axes : tuple of Axis
        Those that are.
    constant : tuple of Axis
        Those that are constants in the trace.
    assumed : dict
        What the trace assumes of each that is open, by name.
    """

    axes: tuple[Axis, ...] = ()
    constant: tuple[Axis, ...] = ()
    assumed: Mapping[str, Assumed] = field(default_factory=dict)


def holds(condition: Any, size: int) -> bool:
    """Whether a condition in one symbol is met by a size."""
    return bool(condition.subs(dict.fromkeys(condition.free_symbols, size)))
