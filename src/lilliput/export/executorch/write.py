"""Build an ExecuTorch program, execute it, compare it with the simulation, and write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from lilliput.errors import ExportError
from lilliput.export.executorch.capture import DEQUANTIZE, Captured, CaptureError, capture
from lilliput.export.executorch.passes import finish, leave_in_float
from lilliput.export.executorch.program import (
    Execution,
    LeftOutError,
    LoweringError,
    Program,
    list_layers,
    lower,
)
from lilliput.export.file_check import FileCheck
from lilliput.export.guard.on_torch import like_example, sample_inputs
from lilliput.export.layer import Layer, some_of
from lilliput.export.places import Array, Inputs, Simulation, first_line, note_defaults
from lilliput.export.result import ExportResult
from lilliput.export.sizes.axes import batch_axis, resized
from lilliput.export.sizes.other_sizes import BATCH
from lilliput.export.steps import Integers
from lilliput.export.trace import check_precision, model_of, simulate, tensors_in
from lilliput.files import write_atomically
from lilliput.frameworks.torch.capture import as_inputs, plain_copy

RUNTIME = "executorch"


def write_program(
    quantizer_or_model: Any,
    place: Path,
    example_inputs: Any,
    max_batch: int,
    min_sqnr: float | None,
    calibration: Iterable[Any] | None,
) -> ExportResult:
    """Do the work of ``export_executorch``; ``min_sqnr`` None: without executing the file."""
    model, inputs = model_of(quantizer_or_model), as_inputs(example_inputs)
    check_precision(model)
    simulation = simulate(model, inputs)
    samples = [like_example(x, inputs) for x in calibration] if calibration is not None else None
    batches = sample_inputs(model) if samples is None else samples
    captured, program = _built(simulation, max_batch)
    layers = list_layers(captured, program)
    notes = [*captured.notes, *note_defaults(simulation.places), *_notes(layers)]
    result = ExportResult(place, len(program.data), RUNTIME, layers=layers, notes=notes)
    result.sizes = {BATCH: _sizes(captured, inputs, max_batch)}
    result._source = lambda: (plain_copy(model), example_inputs)
    rows = max_batch if captured.shapes is not None else 0
    result._write_float = lambda path: _write(path, lower(capture(simulation, rows, True)).data)
    if min_sqnr is not None:
        _check(result, captured, program, simulation, batches, rows, min_sqnr)
    _write(place, program.data)
    return result


def _built(simulation: Simulation, max_batch: int) -> tuple[Captured, Program]:
    """Return the program; with a fixed batch where it cannot be left open."""
    try:
        captured = capture(simulation, max_batch)
        finish(captured)
        return captured, _lowered(captured)
    except (CaptureError, LoweringError) as error:
        if not max_batch:
            raise
        captured, program = _built(simulation, 0)
        captured.notes.append(f"the batch is fixed, for with an open one {first_line(error)}")
        return captured, program


def _lowered(captured: Captured) -> Program:
    """Return the program; layers that XNNPACK leaves out have float weights, which it may take."""
    try:
        return lower(captured)
    except LeftOutError as error:
        leave_in_float(captured, error.weights)
        return lower(captured)


def _write(place: Path, data: bytes) -> None:
    try:
        write_atomically(place, data)
    except OSError as error:
        raise ExportError(f"{place}: it cannot be written: {error}") from error


def _sizes(captured: Captured, inputs: Inputs, max_batch: int) -> str:
    rows = _rows(inputs)
    return f"{rows} only" if captured.shapes is None else f"1 to {max(max_batch, rows, 16)}"


def _rows(inputs: Inputs) -> int:
    axes = batch_axis(tensors_in(inputs))
    return axes[0].size if axes else 1


def _notes(layers: list[Layer]) -> list[str]:
    """Return what keeps a file from being as fast as it could be, and the remedy."""
    ended = [x.name for x in layers if x.reason == "its output is not quantized"]
    if not ended:
        return []
    return [
        f"{some_of(ended)}: the output is not quantized, so XNNPACK computes these in float, and their "
        "weights are stored in float; add 'output' to quant_types."
    ]


def _check(
    result: ExportResult,
    captured: Captured,
    program: Program,
    simulation: Simulation,
    batches: Sequence[Inputs],
    max_batch: int,
    min_sqnr: float,
) -> None:
    """Execute the program on all batches, and refuse it where it differs from the simulation."""
    fitting = [_fitting(x, simulation.inputs, max_batch) for x in batches]
    check = _Check(captured, program, simulation, fitting)
    result._compare = check.compare_layers
    others = [] if not max_batch else [1, 3]
    try:
        found = check.agreement(RUNTIME)
        found, fault = check.step_by_step(RUNTIME, found, min_sqnr)
        for rows in others if not fault else ():
            other = simulation.again(_at(simulation.inputs, rows))
            fault = fault or check.faults(other, RUNTIME, min_sqnr)[1]
    except (RuntimeError, ValueError) as error:
        raise ExportError(f"{RUNTIME} cannot run the file: {first_line(error)}") from error
    result.runtimes[RUNTIME] = found
    if fault:
        raise ExportError(fault)


def _at(inputs: Inputs, rows: int) -> Inputs:
    found: Inputs = resized(inputs, batch_axis(tensors_in(inputs)), {BATCH: rows})
    return found


def _fitting(inputs: Inputs, example: Inputs, max_batch: int) -> Inputs:
    """Return a batch with as many rows as the file takes."""
    rows, own = _rows(inputs), _rows(example)
    return _at(inputs, min(rows, max(max_batch, own, 16)) if max_batch else own)


class _Check(FileCheck):
    """A program, and the same one with all quantized activations among its outputs."""

    def __init__(
        self,
        captured: Captured,
        program: Program,
        simulation: Simulation,
        batches: Sequence[Inputs],
    ) -> None:
        nodes = list(captured.tensors.values())
        held = {
            key: Integers(str(i), *_grid(node))
            for i, (key, node) in enumerate(captured.tensors.items())
        }
        super().__init__(simulation, batches, held, [_step(x) for x in _outputs(captured)])
        self.execution = Execution(program.data)
        self.wide = Execution(lower(captured, nodes).data) if nodes else self.execution

    def run(self, inputs: Inputs, runtime: str) -> list[Array]:
        """Return the outputs of the file."""
        return self.execution.run(tensors_in(inputs))

    def inside(self, inputs: Inputs, runtime: str) -> dict[str, Array]:
        """Return the integers of all quantized activations."""
        found = self.wide.run(tensors_in(inputs))[len(self.steps) :]
        return {str(i): x for i, x in enumerate(found)}


def _grid(node: Any) -> tuple[float, float]:
    """Return the scale and the zero point of a quantize node."""
    return float(node.args[1]), float(node.args[2])


def _outputs(captured: Captured) -> list[fx.Node]:
    end = next(node for node in captured.module.graph.nodes if node.op == "output")
    outputs: Any = end.args[0]
    return list(outputs)


def _step(node: fx.Node) -> float | None:
    """Return the step of the grid that an output lies on, None if it lies on none."""
    return _grid(node)[0] if node.target is DEQUANTIZE else None
