"""From the simulation to an ExecuTorch program: capture, passes on the graph, lowering."""

from __future__ import annotations

from lilliput.frameworks.exporting.simulation import Simulation, first_line
from lilliput.frameworks.torch.executorch.capture import Captured, CaptureError, capture
from lilliput.frameworks.torch.executorch.passes import finish, leave_in_float
from lilliput.frameworks.torch.executorch.program import (
    LeftOutError,
    LoweringError,
    Program,
    lower,
)
from lilliput.frameworks.torch.executorch.program import list_layers as list_layers


def build(simulation: Simulation, max_batch: int) -> tuple[Captured, Program]:
    """Return a model as a program; with a fixed batch if it cannot be dynamic."""
    try:
        captured = capture(simulation, max_batch)
        finish(captured)
        return captured, _lowered(captured)
    except (CaptureError, LoweringError) as error:
        if not max_batch:
            raise
        captured, program = build(simulation, 0)
        captured.notes.append(
            f"the batch size is fixed, because with a dynamic one {first_line(error)}"
        )
        return captured, program


def float_program(simulation: Simulation, max_batch: int) -> bytes:
    """Return the same model without any quantization."""
    return lower(capture(simulation, max_batch, is_float=True)).data


def _lowered(captured: Captured) -> Program:
    """Return the program; layers that XNNPACK leaves out get float weights, which it may accept."""
    try:
        return lower(captured)
    except LeftOutError as error:
        leave_in_float(captured, error.weights)
        return lower(captured)
