"""Execute a file at sizes other than the example's, where it has dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from lilliput.errors import ExportError
from lilliput.frameworks.exporting.simulation import Inputs, Simulation, first_line
from lilliput.frameworks.exporting.sizes import BATCH

Sizes = dict[str, int]
_LARGEST = 2**28  # bytes of inputs for testing a batch size
_COSTLY = 4  # times the numbers in the example: larger sizes are tested for the batch only
_FIXED = "Pass dynamic_batch=False for a file that only accepts the example's batch size."


class OtherSizeError(ExportError):
    """The file does not match the model at sizes other than the example's."""

    def __init__(self, message: str, axes: Sequence[str]) -> None:
        super().__init__(message)
        self.axes = list(axes)


@dataclass
class OtherSizes:
    """The sizes at which to execute a file, and the outcomes.

    Parameters
    ----------
    simulation : Simulation
        The model on the example inputs.
    opened : OpenSizes, optional
        The dynamic sizes of the trace; None if only the batch can be.
    rows : int
        The number of rows of the example.
    fault_at : callable
        Returns the fault of the file for inputs, or an empty string.
    """

    simulation: Simulation
    opened: Any
    rows: int
    fault_at: Callable[[Simulation], str]
    refused: dict[str, list[int]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)  # the largest size that the model accepts
    tried: dict[str, set[int]] = field(default_factory=dict)
    _known: dict[tuple[tuple[str, int], ...], Simulation | None] = field(default_factory=dict)

    def check(self) -> None:
        """Raise if the file differs from the model at any tested size."""
        for sizes in self._usual():
            self._try(sizes)
        for name, assumed in (self.opened.assumed if self.opened else {}).items():
            for size in assumed.to_try():
                if size in self.tried.get(name, ()):
                    continue
                if self._is_too_large({name: size}):
                    if name == BATCH:
                        raise OtherSizeError(
                            f"the model was traced for batches of {assumed}, and whether "
                            "it takes another branch beyond that cannot be tested: "
                            f"{size} rows are too many. {_FIXED}",
                            [name],
                        )
                    continue
                if not self._try({name: size}):
                    self.refused.setdefault(name, []).append(size)
            ends = [end for end in assumed.ends if not self._runs({name: end + 1})]
            self.limits |= {name: min(ends)} if ends else {}

    def notes(self) -> list[str]:
        """Return notes on sizes that the model itself does not accept."""
        texts = []
        for name, refused in self.refused.items():
            assumed = self.opened.assumed[name]
            sizes = [size for size in refused if name == BATCH or assumed.is_in_range(size)]
            if not sizes:
                continue  # included in the range
            what = "batches of {} rows" if name == BATCH else f"a {name} of {{}}"
            listed = ", ".join(str(size) for size in sizes)
            texts.append(
                f"the model itself refuses {what.format(listed)} (it was traced for "
                f"{assumed}): call the file only with sizes that the model accepts."
            )
        return texts

    def _usual(self) -> Iterator[Sizes]:
        """Yield the sizes at which every file is tested: all axes smaller together, and larger."""
        if self.opened is None:
            yield {BATCH: 1 if self.rows > 1 else 2}
            return
        axes = self.opened.axes
        smaller = {axis.name: self._other(axis) for axis in axes}
        if not self._runs(smaller):  # not all together
            yield from ({name: size} for name, size in smaller.items())
        else:
            yield smaller
        rows = {axis.name: 1 for axis in axes if axis.name == BATCH}
        larger: Sizes = {}
        for axis in (axis for axis in axes if axis.name != BATCH):
            for size in (axis.size + 3, axis.size + 32, 2 * axis.size):
                sizes = {**rows, **larger, axis.name: size}
                if self.opened.assumed[axis.name].allows(size) and self._runs(sizes):
                    larger[axis.name] = size
                    break
        if larger:
            yield {**rows, **larger}

    def _other(self, axis: Any) -> int:
        """Return another size that the model is assumed to accept."""
        if axis.other:
            return int(axis.other)
        if axis.name == BATCH:
            return 1 if axis.size > 1 else 2
        allows = self.opened.assumed[axis.name].allows
        sizes = [x for x in (axis.size // 2, axis.size - 1, axis.size + 1) if x > 1 and allows(x)]
        return sizes[0] if sizes else int(axis.size)

    def _is_too_large(self, sizes: Sizes) -> bool:
        tensors = self.simulation.tensors(self.simulation.inputs)
        now = {axis.name: axis.size for axis in self.opened.axes}
        factor = prod(size / now[name] for name, size in sizes.items())
        if BATCH in sizes:
            held = sum(_bytes(x) for x in tensors)
            return bool(factor * held > _LARGEST)
        return bool(factor / max(self.rows, 1) > _COSTLY)

    def _inputs(self, sizes: Sizes) -> Inputs:
        """Return inputs of these sizes, with one row if the batch is dynamic and not among them."""
        axes = self.opened.axes if self.opened else ()
        if BATCH not in sizes and any(axis.name == BATCH for axis in axes):
            sizes = {**sizes, BATCH: 1}
        return self.simulation.resized(sizes)

    def _runs(self, sizes: Sizes) -> bool:
        return self._simulated(sizes) is not None

    def _simulated(self, sizes: Sizes) -> Simulation | None:
        """Return the model's outputs for inputs of these sizes, or None if it does not accept them."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            inputs = self._inputs(sizes)
            try:
                outputs = self.simulation.again(inputs).outputs
                self._known[key] = replace(self.simulation, inputs=inputs, outputs=outputs)
            except ExportError:
                self._known[key] = None  # the model itself requires its size
        return self._known[key]

    def _try(self, sizes: Sizes) -> bool:
        """Execute the file at other sizes; return whether the model accepts them."""
        simulation = self._simulated(sizes)
        if simulation is None:
            return False
        for name, size in sizes.items():
            self.tried.setdefault(name, set()).add(size)
        fault = self.fault_at(simulation)
        if not fault:
            return True
        guilty = [name for name in sizes if len(sizes) > 1 and self._is_wrong({name: sizes[name]})]
        names = guilty or list(sizes)
        raise OtherSizeError(self._explain(fault, {name: sizes[name] for name in names}), names)

    def _is_wrong(self, sizes: Sizes) -> bool:
        simulation = self._simulated(sizes)
        return simulation is not None and bool(self.fault_at(simulation))

    def _explain(self, fault: str, sizes: Mapping[str, int]) -> str:
        texts = [_rows(n) if name == BATCH else f"a {name} of {n}" for name, n in sizes.items()]
        assumed = self.opened.assumed if self.opened else {}
        held = " and ".join(filter(None, (str(assumed.get(name, "")) for name in sizes)))
        traced = f" (it was traced for {held})" if held else ""
        advice = _FIXED if [*sizes] == [BATCH] else "Remove it from dynamic_shapes."
        return (
            f"for {' and '.join(texts)} the file {fault}: the model takes another branch there{traced}. "
            f"{advice}"
        )


def explain_fault(error: BaseException | None, ratio: float) -> str:
    """Return the fault of a file: it does not run, or its outputs differ."""
    if error is not None:
        return f"does not run ({first_line(error)}), but the model does"
    return f"does not match the model ({ratio:.1f} dB), although it does for the example's sizes"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _bytes(tensor: Any) -> int:
    size = getattr(tensor, "nbytes", 0)
    return int(size) if isinstance(size, int) else 0
