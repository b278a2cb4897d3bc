"""Compare an executed file with the simulation: end to end, and tensor by tensor.

The common part of the checks for LiteRT and ExecuTorch; ONNX files have their own in ``check``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.errors import ExportError, StageError
from lilliput.export.run import Agreement, compare, compare_tensor
from lilliput.export.steps import ONE_STEP, Integers, Key, Step, aligned, compare_steps
from lilliput.frameworks.exporting.simulation import Array, Inputs, Simulation, to_array


class FileCheck(ABC):
    """The simulation, and batches for comparing a file with it; a target defines how to execute it.

    Parameters
    ----------
    simulation : Simulation
        The model on the example inputs.
    batches : sequence of inputs
        Other inputs to compare on.
    tensors : mapping
        The tensor of the file for each quantized activation.
    steps : sequence of float or None
        The step of the grid of each output, or None.
    """

    def __init__(
        self,
        simulation: Simulation,
        batches: Sequence[Inputs],
        tensors: Mapping[Key, Integers],
        steps: Sequence[float | None],
    ) -> None:
        self.simulation, self.tensors, self.steps = simulation, tensors, list(steps)
        self.names = simulation.names
        self.batches = [simulation.inputs, *batches]
        self.expected = [[to_array(x) for x in simulation.outputs]]
        self.expected += [[to_array(x) for x in simulation.again(b).outputs] for b in batches]
        if len(self.steps) != len(self.expected[0]):
            raise ExportError(
                f"the file has {len(self.steps)} outputs, the model {len(self.expected[0])}; "
                "return tensors that depend on the inputs."
            )

    @abstractmethod
    def run(self, inputs: Inputs, runtime: str) -> list[Array]:
        """Return the outputs of the file as numbers."""

    @abstractmethod
    def inside(self, inputs: Inputs, runtime: str) -> dict[str, Array]:
        """Return the quantized activations of the file, by their names in ``tensors``."""

    def agreement(self, runtime: str) -> Agreement:
        """Return the agreement of a runtime with the simulation over all batches."""
        received = [self.run(inputs, runtime) for inputs in self.batches]
        count = len(self.batches)
        flat = [[x for batch in batches for x in batch] for batches in (self.expected, received)]
        return compare(self.names * count, flat[0], flat[1], self.steps * count)

    def step_by_step(
        self, runtime: str, found: Agreement, min_sqnr: float
    ) -> tuple[Agreement, str]:
        """Compare every quantized tensor separately; return the worst one and its fault."""
        steps, fault = self.faults(self.simulation, runtime, min_sqnr)
        worst = max(steps, key=lambda step: step.lsb, default=None)
        if worst is not None:
            found = replace(found, local_lsb=worst.lsb, local_layer=worst.layer)
        return found, fault

    def faults(
        self, simulation: Simulation, runtime: str, min_sqnr: float
    ) -> tuple[list[Step], str]:
        """Return all tensors compared on other inputs, and the fault of the file on them."""
        values = self.inside(simulation.inputs, runtime)
        steps, outputs = compare_steps(simulation, self.tensors, values)
        for step in steps:
            if step.lsb > ONE_STEP:
                return steps, _explain(step, runtime)
        last = compare(self.names, outputs, self.run(simulation.inputs, runtime), self.steps)
        if not last.sqnr >= min_sqnr and not (last.lsb is not None and last.lsb <= ONE_STEP):
            return steps, _far(last, runtime, min_sqnr)
        return steps, ""

    def compare_layers(self, runtime: str) -> list[dict[str, Any]]:
        """Return the agreement of each quantized activation, in order of execution."""
        results = kept_results(self.simulation, self.expected[0])
        found = self.inside(self.simulation.inputs, runtime)
        read = {key: (held.reals(found), held.step(found)) for key, held in self.tensors.items()}
        return compare_results(self.simulation, results, read)


Results = list[list[tuple[Array, ...]]]  # of each placement, call by call


def kept_results(simulation: Simulation, outputs: Sequence[Array]) -> Results:
    """Run the model again and return the outputs of its quantizers; raise if the model has changed."""
    again = simulation.again(simulation.inputs, keep=True)
    pairs = zip(again.outputs, outputs, strict=True)
    if not all(np.array_equal(to_array(x), y) for x, y in pairs):
        raise StageError("the model has changed since it was exported; export it again.")
    placements = {placement.key: placement for placement in again.placements}
    return [placements[x.key].results if x.key in placements else [] for x in simulation.placements]


def compare_results(
    simulation: Simulation, results: Results, read: Mapping[Key, tuple[Array, float | None]]
) -> list[dict[str, Any]]:
    """Return the agreement of a file's tensors, with the steps of their grids, with the quantizers."""
    rows = []
    for (number, position, call), (reals, step) in read.items():
        if call < len(results[number]):
            expected = results[number][call][position]
            received = aligned(reals, expected, step)
            rows.append(
                compare_tensor(simulation.placements[number], call, expected, received, step)
            )
    return rows


def _explain(step: Step, runtime: str) -> str:
    return (
        f"the {step.tensor} of layer {step.layer!r} as executed by {runtime} is {step.lsb:g} steps of its "
        f"grid from the simulation ({step.sqnr:.1f} dB), given the same inputs."
    )


def _far(found: Agreement, runtime: str, min_sqnr: float) -> str:
    return (
        f"output {found.output!r} as executed by {runtime} is {found.sqnr:.1f} dB from the simulation "
        f"(largest difference {found.max_error:.3g}), expected {min_sqnr:g} dB or more."
    )
