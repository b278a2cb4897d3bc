"""Files are written by TensorFlow: here, or in a process of its own where Keras runs on something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras

from lilliput.export.keras.examples import examples_for, sample_inputs
from lilliput.export.keras.simulation import as_inputs, plain_source
from lilliput.export.keras.transfer import export_elsewhere
from lilliput.export.places import Inputs
from lilliput.export.result import ExportResult


def write_by_tensorflow(
    format_: str,
    write: Callable[..., ExportResult],
    model: Any,
    place: Path,
    example_inputs: Any,
    calibration: Iterable[Any] | None,
    settings: dict[str, Any],
) -> ExportResult:
    """Return what ``write(model, place, inputs, batches, **settings)`` returns under TensorFlow."""
    inputs, batches = _gather_inputs(model, example_inputs, calibration)
    if keras.backend.backend() != "tensorflow":
        result = export_elsewhere(format_, model, place, inputs, batches, settings)
    else:
        result = write(model, place, inputs, batches, **settings)
    result._source = lambda: plain_source(model, inputs)
    return result


def _gather_inputs(
    model: Any, example_inputs: Any, calibration: Iterable[Any] | None
) -> tuple[Inputs, list[Inputs]]:
    """Return what to trace with, and what else to compare on."""
    seen = sample_inputs(model) if calibration is None else [as_inputs(x) for x in calibration]
    if example_inputs is not None:
        return as_inputs(example_inputs), seen
    if seen:
        return seen[0], seen[1:]
    return examples_for(model), []
