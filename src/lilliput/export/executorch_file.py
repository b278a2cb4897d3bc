"""Build an ExecuTorch program, execute it, compare it with the simulation, and write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError
from lilliput.export.arguments import write_file
from lilliput.export.file_check import FileCheck
from lilliput.export.guard.on_model import sample_inputs
from lilliput.export.notes import note_defaults, notes_on
from lilliput.export.result import ExportResult
from lilliput.export.sizes.axes import batch_axis
from lilliput.export.steps import Integers
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.layer import Layer
from lilliput.frameworks.exporting.simulation import (
    Array,
    Inputs,
    Simulating,
    Simulation,
    first_line,
    to_array,
)
from lilliput.frameworks.exporting.sizes import BATCH

RUNTIME = "executorch"


def write_program(
    quantizer_or_model: Any,
    place: Path,
    example_inputs: Any,
    max_batch: int,
    min_sqnr: float | None,
    calibration: Iterable[Any] | None,
) -> ExportResult:
    """Do the work of ``export_executorch``; with ``min_sqnr`` None, without executing the file."""
    part: Simulating = part_of("torch", "export.simulation")
    model, inputs = part.model_of(quantizer_or_model), part.as_inputs(example_inputs)
    simulation = part.simulate(model, inputs)
    simulation = replace(simulation, axes=tuple(batch_axis(simulation.tensors(inputs))))
    if calibration is None:
        batches = sample_inputs(model)
    else:
        batches = [part.like_example(x, inputs) for x in calibration]
    target = part_of("torch", "executorch.build")
    captured, program = target.build(simulation, max_batch)
    layers = target.list_layers(captured, program)
    notes = [*captured.notes, *note_defaults(simulation.placements), *_notes(layers)]
    result = ExportResult(place, len(program.data), RUNTIME, layers=layers, notes=notes)
    result.sizes = {BATCH: _sizes(captured, simulation, max_batch)}
    result._source = lambda: part.plain_source(model, example_inputs)
    rows = max_batch if captured.shapes is not None else 0
    result._write_float = lambda path: write_file(path, target.float_program(simulation, rows))
    if min_sqnr is not None:
        _check(result, captured, program, simulation, batches, rows, min_sqnr)
    write_file(place, program.data)
    return result


def _sizes(captured: Any, simulation: Simulation, max_batch: int) -> str:
    rows = _rows(simulation)
    return f"{rows} only" if captured.shapes is None else f"1 to {max(max_batch, rows, 16)}"


def _rows(simulation: Simulation) -> int:
    return simulation.axes[0].size if simulation.axes else 1


def _notes(layers: list[Layer]) -> list[str]:
    """Return notes on what makes a file slower than necessary, with the remedy."""
    ended = [x.name for x in layers if x.reason == "its output is not quantized"]
    return notes_on(
        ended,
        "the output is not quantized, so XNNPACK computes these in float, and their weights are stored in "
        "float; add 'output' to quant_types.",
    )


def _check(
    result: ExportResult,
    captured: Any,
    program: Any,
    simulation: Simulation,
    batches: Sequence[Inputs],
    max_batch: int,
    min_sqnr: float,
) -> None:
    """Execute the program on all batches, and raise if it differs from the simulation."""
    fitting = [_fitting(x, simulation, max_batch) for x in batches]
    check = _Check(captured, program, simulation, fitting)
    result._compare = check.compare_layers
    others = [] if not max_batch else [1, 3]
    try:
        found = check.agreement(RUNTIME)
        found, fault = check.step_by_step(RUNTIME, found, min_sqnr)
        for rows in others if not fault else ():
            other = simulation.again(simulation.resized({BATCH: rows}))
            fault = fault or check.faults(other, RUNTIME, min_sqnr)[1]
    except (RuntimeError, ValueError) as error:
        raise ExportError(f"{RUNTIME} cannot run the file: {first_line(error)}") from error
    result.runtimes[RUNTIME] = found
    if fault:
        raise ExportError(fault)


def _fitting(inputs: Inputs, simulation: Simulation, max_batch: int) -> Inputs:
    """Return a batch with as many rows as the file accepts."""
    axes = tuple(batch_axis(simulation.tensors(inputs)))
    batch, own = replace(simulation, inputs=inputs, axes=axes), _rows(simulation)
    rows = min(_rows(batch), max(max_batch, own, 16)) if max_batch else own
    return batch.resized({BATCH: rows})


class _Check(FileCheck):
    """A program, and the same one with all quantized activations among its outputs."""

    def __init__(
        self, captured: Any, program: Any, simulation: Simulation, batches: Sequence[Inputs]
    ) -> None:
        grids = captured.grids().items()
        held = {key: Integers(str(i), *grid) for i, (key, grid) in enumerate(grids)}
        steps = [grid and grid[0] for grid in captured.output_grids()]
        super().__init__(simulation, batches, held, steps)
        part = part_of("torch", "executorch.program")
        self.execution = self.wide = part.Execution(program.data)
        if held:
            self.wide = part.Execution(part.lower(captured, captured.tensors.values()).data)

    def run(self, inputs: Inputs, runtime: str) -> list[Array]:
        """Return the outputs of the file."""
        outputs: list[Array] = self.execution.run(self._arrays(inputs))
        return outputs

    def inside(self, inputs: Inputs, runtime: str) -> dict[str, Array]:
        """Return the integers of all quantized activations."""
        found = self.wide.run(self._arrays(inputs))[len(self.steps) :]
        return {str(i): x for i, x in enumerate(found)}

    def _arrays(self, inputs: Inputs) -> list[Array]:
        return [to_array(x) for x in self.simulation.tensors(inputs)]
