"""ExecuTorch programs: ``.pte`` files whose layers XNNPACK computes on integers.

The model is captured by ``torch.export`` with quantize and dequantize operators instead of its
quantizers, at exactly their scales; the parts that XNNPACK's partitioner accepts run in its kernels.
XNNPACK uses int8 activations, so uint8 grids are written with their integers shifted by 128, which
represent the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import ConfigError, ExportError, MissingExtraError, StateError
from lilliput.export.targets.executed import Array, ExecutedFile, TensorInfo
from lilliput.export.targets.target import Package, Target, Writer
from lilliput.extras import is_installed
from lilliput.frameworks import part_of

if TYPE_CHECKING:
    from lilliput.export.result import ExportResult

RUNTIME = "executorch"
_NEEDS = "ExecuTorch files need pip install 'lilliput[executorch]'"


def export_executorch(
    quantizer_or_model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    dynamic_batch: bool = True,
    max_batch: int = 64,
    check: bool = True,
    min_sqnr: float = 30.0,
    calibration: Iterable[Any] | None = None,
) -> ExportResult:
    """Write a model as an ExecuTorch program that XNNPACK runs on integers, execute it, and compare.

    Activations are quantized as in the simulation, with exactly its scales; batch norms are folded,
    masks of pruners are applied. A layer runs on integers if its input, its weight and its output are
    quantized to 8 bits or less; the result lists the others with the reasons. The model is not changed.

    Parameters
    ----------
    path : str or path-like
        The file to write, ending in ``.pte``.
    dynamic_batch : bool
        Whether the file accepts batches of other sizes, up to ``max_batch``: the first axis of the inputs.
        If the model cannot be captured that way, the size is fixed, with a note.
    max_batch : int
        The largest batch, or that of the example if it is larger. ExecuTorch plans its memory for it.
    min_sqnr : float
        The lowest signal-to-noise ratio in dB of the outputs, compared with the simulation on the
        integers that the file computed, at which it is written. Quantized tensors may be off by one
        step of their grid.
    quantizer_or_model, example_inputs, check, calibration
        As in :func:`lilliput.torch.export_onnx`, whose result and errors it shares. The file accepts tensors
        of the example's sizes.
    """
    from lilliput.export.arguments import check_options, checked_path
    from lilliput.export.executorch_file import write_program

    place = checked_path(path, ExecuTorch.suffix)
    check_options(min_sqnr, calibration)
    if isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1:
        raise ExportError(f"max_batch: received {max_batch!r}, expected an integer from 1.")
    if not all(is_installed(name) for name in ExecuTorch.writers[0].modules):
        raise MissingExtraError(_NEEDS)
    return write_program(
        quantizer_or_model,
        place,
        example_inputs,
        max_batch=max_batch if dynamic_batch else 0,
        min_sqnr=min_sqnr if check else None,
        calibration=calibration,
    )


class ExecuTorchFile(ExecutedFile):
    """An ExecuTorch program in its runtime.

    All programs of a process share their threads: torch's number when the first one was opened.
    """

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        if not is_installed("executorch"):
            raise MissingExtraError(_NEEDS)
        try:
            part = part_of("torch", "executorch.program")
            self.execution = part.Execution(path.read_bytes())
        except (RuntimeError, ValueError) as error:
            raise StateError(f"{path}: ExecuTorch cannot read the file ({error}).") from error
        self.threads = self.execution.threads
        self.names = [x.name for x in self.tensors() if x.kind == "input"]
        self.runtime = f"ExecuTorch {version('executorch')}"

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs; the inputs of a program have no names and are passed in order."""
        self.order(len(arrays), ())
        try:
            outputs: list[Array] = self.execution.run(arrays)
            return outputs
        except RuntimeError as error:
            shapes = [tuple(x.shape) for x in arrays]
            takes = [x.shape for x in self.tensors() if x.kind == "input"]
            raise ConfigError(
                f"{self.path.name}: it does not run on inputs of shapes {shapes}; it accepts {takes}, or "
                f"smaller batches if the batch size is dynamic ({error})."
            ) from error

    def tensors(self) -> list[TensorInfo]:
        """Return the inputs and outputs; a dynamic batch has its largest size."""
        return [TensorInfo(*x) for x in self.execution.tensors()]


class ExecuTorch(Target):
    """A program of ExecuTorch, lowered to XNNPACK, executed by the runtime in ExecuTorch's package."""

    name, title, suffix, runtime = "executorch", "ExecuTorch", ".pte", RUNTIME
    file = ExecuTorchFile
    writers = (
        Writer(
            "torch",
            "lilliput.export.targets.executorch:export_executorch",
            ("executorch", "torchao"),
            "executorch",
        ),
    )
    packages = (Package("executorch", "ExecuTorch files", "executorch"),)
    options = ("dynamic_batch", "max_batch", "check", "min_sqnr")
    quant_types = ("weight", "input", "output")
