"""Make as many sizes dynamic as the model allows; fix and report those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lilliput.export.sizes.axes import expected_axes
from lilliput.export.sizes.other_sizes import OtherSizeError
from lilliput.frameworks.exporting.simulation import Simulation
from lilliput.frameworks.exporting.sizes import BATCH, Assumed, Axis, OpenSizes, TraceError

if TYPE_CHECKING:
    from lilliput.export.passes.graph import Draft

Result = TypeVar("Result")
_REFUSED = "the model accepts no other size"
_CONSTANT = "a constant in torch's trace of the model"


@dataclass(frozen=True)
class Opening:
    """The dynamic axes, and the reasons why others are fixed."""

    axes: tuple[Axis, ...]
    fixed: tuple[tuple[Axis, str], ...] = ()


def write_open(axes: Sequence[Axis], write: Callable[[Opening], Result]) -> Result:
    """Write a file with these dynamic axes; axes that were not requested are fixed if they fail."""
    opening = Opening(tuple(axes))
    while True:
        free = [axis.name for axis in opening.axes if not axis.is_asked]
        try:
            return write(opening)
        except OtherSizeError as error:
            guilty, reason = [name for name in error.axes if name in free], str(error)
            if not guilty:
                raise
        except TraceError as error:
            guilty, reason = free, str(error)
            if not guilty:
                raise
        kept = tuple(axis for axis in opening.axes if axis.name not in guilty)
        left = tuple((axis, reason) for axis in opening.axes if axis.name in guilty)
        opening = Opening(kept, (*opening.fixed, *left))


def size_texts(
    simulation: Simulation, draft: Draft, opening: Opening, is_chosen: bool
) -> dict[str, str]:
    """Return the accepted range of each size that is dynamic, or expected to be.

    ``is_chosen``: the user selected the dynamic sizes.
    """
    opened, limits = draft.sizes or OpenSizes(), draft.limits
    texts = {
        axis.name: _range(opened.assumed[axis.name], limits.get(axis.name)) for axis in opened.axes
    }
    fixed = [*opening.fixed, *((axis, _CONSTANT) for axis in opened.constant)]
    places = {place for axis in (*opened.axes, *(x for x, _ in fixed)) for place in axis.places}
    if not is_chosen:
        tensors, names = simulation.tensors(simulation.inputs), simulation.input_names()
        others = [x for x in expected_axes(tensors, names) if x.places[0] not in places]
        fixed += [(axis, _REFUSED) for axis in others if axis.name not in texts]
    return {**texts, **{axis.name: f"{axis.size} only ({reason})" for axis, reason in fixed}}


def untried(sizes: OpenSizes | None) -> list[str]:
    """Return notes on what was not verified for a file that was not executed."""
    found = {} if sizes is None else {name: str(x) for name, x in sizes.assumed.items()}
    return [
        f"traced for {'batches of ' if name == BATCH else ''}{text}; other sizes were not tried."
        for name, text in found.items()
        if text
    ]


def _range(assumed: Assumed, limit: int | None) -> str:
    """Return the range that is valid for the trace and accepted by the model."""
    low = max((x for x, _ in assumed.ranges), default=0)
    ends = [x for _, x in assumed.ranges if x is not None] + ([] if limit is None else [limit])
    start = low if low > 2 else 1  # torch itself starts at two
    return f"{start} to {min(ends)}" if ends else "any" if start == 1 else f"{start} or more"
