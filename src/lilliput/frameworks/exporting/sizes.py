"""Dynamic input sizes of a file, and the sizes for which a trace is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lilliput.errors import ExportError

BATCH = "batch"
AxisPlace = tuple[int, int]  # index of the tensor among the inputs, and its axis
FEW = range(2, 65)  # sizes that are tested for conditions such as "even" or "not 9"
_MOST = 3  # number of excluded sizes to execute


class TraceError(ExportError):
    """The framework cannot trace the model with these dynamic sizes."""


@dataclass(frozen=True)
class Axis:
    """One size shared by inputs.

    Parameters
    ----------
    name : str
        Its name in the file.
    places : tuple of (int, int)
        The tensors among the inputs, and their axes, that have this size.
    size : int
        Its value in the example inputs.
    other : int
        Another size that the model accepts, 0 if there is none.
    hint : object
        Passed to the framework's tracer; by default derived from ``is_asked``.
    is_asked : bool
        Whether the user requested it: it is then an error, not fixed, if the model does not allow it.
    """

    name: str
    places: tuple[AxisPlace, ...]
    size: int
    other: int = 0
    hint: Any = None
    is_asked: bool = False


@dataclass(frozen=True)
class Assumed:
    """Assumptions of a trace about a size: ranges, and conditions that hold for the example.

    A model that branches for more than 6 rows has the range 0 to 6; one that branches for odd
    numbers has the condition ``Eq(Mod(rows, 2), 0)``. A file contains only the branch of the example.

    Parameters
    ----------
    name : str
        Name of the size.
    ranges : tuple of (int, int or None)
        Smallest and largest size, None for no upper limit.
    conditions : tuple of sympy expressions
        In one symbol.
    looked_at : sequence of int
        Sizes that were tested for conditions.
    ends : tuple of int
        Sizes at which something in the model ends, such as a table of positions.
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
        """Return sizes on both sides of the range limits, and sizes that conditions exclude."""
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
    """The result for the sizes that were requested to be dynamic.

    Parameters
    ----------
    axes : tuple of Axis
        The dynamic sizes.
    constant : tuple of Axis
        The sizes that are constants in the trace.
    assumed : dict
        The assumptions of the trace about each dynamic size, by name.
    """

    axes: tuple[Axis, ...] = ()
    constant: tuple[Axis, ...] = ()
    assumed: Mapping[str, Assumed] = field(default_factory=dict)


def holds(condition: Any, size: int) -> bool:
    """Whether a size satisfies a condition in one symbol."""
    return bool(condition.subs(dict.fromkeys(condition.free_symbols, size)))
