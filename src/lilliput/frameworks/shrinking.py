"""The framework interface for cutting channels out, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lilliput.errors import StateError
from lilliput.graph.dead import Zeros
from lilliput.graph.plan import Plan

Shapes = dict[str, list[int]]


@dataclass(frozen=True, eq=False)
class Options:
    """How to cut; the fields are the parameters of :func:`lilliput.speedup.shrink.speedup`."""

    optimizer: Any = None
    masks: Any = None
    extend_masks: bool = False
    allow_graph: bool = True
    inplace: bool = True


@dataclass(frozen=True, eq=False)
class Shrunk:
    """A shrunk model and its figures; the fields are those of ``SpeedupResult``.

    Parameters
    ----------
    before : model
        The original model without compressors, for timing.
    inputs : Any
        Inputs for timing both models.
    """

    model: Any
    before: Any
    inputs: Any
    plan: Plan
    error: float
    parameters: tuple[int, int]
    macs: tuple[int, int]
    removed: dict[str, tuple[int, int]]
    remembered: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    source: Shapes


class Shrinking(Protocol):
    """The module ``shrink`` of a framework."""

    # Whether the first call of a model takes about as long as later ones, so that it can be timed.
    RUNS_AT_ONCE: bool

    def shrink(self, model: Any, example_inputs: Any, options: Options) -> Shrunk:
        """Cut masked channels out of a model, and verify that its outputs are the same."""

    def zeros_of(self, model: Any) -> Zeros:
        """Return which slices of a model's parameters are zero or masked, for ``find_dead``."""


class Replay(Protocol):
    """The module ``replay`` of a framework: shrunk models as named tensors, and back."""

    def saved_tensors(self, model: Any) -> dict[str, Any]:
        """Return all tensors of a plain model's state, by names that depend only on its class."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value in example inputs is described by its shape and type."""

    def zeros_like(self, shape: list[int], dtype: str) -> Any:
        """Return a tensor of zeros with that shape and type."""

    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return example inputs as the arguments of a call."""

    def as_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return such arguments as example inputs."""

    def replay(
        self, model: Any, plan: Plan, source: Shapes, tensors: Any, inputs: Any, folder: Path
    ) -> Any:
        """Shrink a model of the original class by a plan, and load its tensors; all or nothing."""


def compare_shapes(saved: Shapes, here: Shapes, folder: Path) -> None:
    """Raise unless this is the model that was shrunk."""
    faults = [f"{name} is not in this model" for name in saved if name not in here]
    faults += [f"{name} is not in the saved model" for name in here if name not in saved]
    faults += [
        f"{name} has shape {here[name]}, the original had {shape}"
        for name, shape in saved.items()
        if name in here and here[name] != shape
    ]
    if faults:
        listed = "".join(f"\n  - {fault}" for fault in faults[:10])
        more = f"\n  … and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise StateError(
            f"{folder} was shrunk from a different model; pass load() the model before "
            f"shrinking:{listed}{more}"
        )


def compare_types(saved: Mapping[str, str], here: Mapping[str, str], folder: Path) -> None:
    """Raise if the model would round the saved tensors to other types."""
    faults = [
        f"{name!r} is {saved[name]}, expected {kind}"
        for name, kind in here.items()
        if saved.get(name, kind) != kind
    ]
    if faults:
        more = f"; {len(faults) - 5} more" if len(faults) > 5 else ""
        raise StateError(
            f"{folder}: its tensors have different dtypes than this model's: {'; '.join(faults[:5])}{more}. "
            "Convert the model to the dtypes of the file first."
        )


def check_cuts(plan: Plan, source: Shapes, folder: Path) -> None:
    """Raise if cuts keep indices that do not exist."""
    for cut in plan.cuts:
        shape = source.get(cut.tensor, [])
        size = shape[cut.dim] if 0 <= cut.dim < len(shape) else 0
        for row in cut.keep if cut.keep.ndim == 2 else [cut.keep]:
            kept = row.tolist()
            if len({x for x in kept if 0 <= x < size}) != len(kept):
                raise StateError(
                    f"{folder}: the plan does not fit this model: {cut.tensor} has {size} indices in "
                    f"dimension {cut.dim}, and the plan keeps others."
                )
