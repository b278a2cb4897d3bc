"""What a run asks of a framework, whose module ``recipe`` answers, and the stages in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from lilliput.export.targets.table import target_named
from lilliput.frameworks import part_of
from lilliput.recipes.functions import Functions


class Loop(Protocol):
    """One framework's way of training, writing and seeding."""

    name: str
    # Whether shrunk models are written whole; otherwise the plan is, and followed again.
    writes_models: bool

    def seed(self, number: int) -> None:
        """Seed the generators of the framework."""

    def threads(self) -> int | None:
        """Return how many threads compute, if that is known."""

    def set_threads(self, count: int | None) -> None:
        """Compute with that many threads, where they can be chosen."""

    def tensors(self, model: Any) -> dict[str, Any]:
        """Return all that a model has learned, by name."""

    def load(self, model: Any, tensors: dict[str, Any]) -> None:
        """Put such tensors back."""

    def check_training(self, functions: Functions) -> str:
        """Return what is missing to train, or an empty text."""

    def start_training(
        self,
        model: Any,
        compressors: list[Any],
        functions: Functions,
        factory: Any,
        learning_rate: float | None,
    ) -> Any:
        """Return a new optimizer that the compressors follow."""

    def start_recovery(self, model: Any) -> Any:
        """Return an optimizer that trains a cut network without being tuned for it."""

    def stop_training(self, compressors: list[Any]) -> None:
        """Make compressors forget their optimizer."""

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return what an optimizer knows, as nested plain values and tensors."""

    def load_optimizer(self, optimizer: Any, state: Any) -> None:
        """Put it back."""

    def train(
        self,
        model: Any,
        optimizer: Any,
        batches: Any,
        functions: Functions,
        current: Any,
        epoch: int,
        epochs: int,
        distiller: Any = None,
    ) -> None:
        """Train one epoch; ``current`` is the compressor whose schedule moves, if any.

        What a distiller adds to the loss is all of it if the distiller ``is_alone``.
        """

    def calibrate(self, compressor: Any, batches: Any, functions: Functions) -> None:
        """Run batches through a compressor that looks at data."""

    def forward(self, model: Any, inputs: Any) -> Any:
        """Call a model with the inputs of a batch, in evaluation mode."""

    def evaluation_mode(self, model: Any) -> None:
        """Make a model compute as it will in use."""

    def write_shrunk(self, shrunk: Any, model: Any, folder: Path) -> None:
        """Write a shrunk model, if :attr:`writes_models`, and make it ready to train as another is."""

    def read_shrunk(self, model: Any, folder: Path) -> Any:
        """Read it again."""

    def write_model(self, model: Any, compressors: list[Any], folder: Path) -> Path:
        """Write the plain weights, masks and weight quantization applied; return the file."""

    def place(self, value: Any, model: Any) -> Any:
        """Return inputs where the model is."""

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of a batch's inputs."""


def loop_named(name: str) -> Loop:
    """Return the part of a framework, importing it."""
    found: Loop = part_of(name, "recipe").loop
    return found


def recover(loop: Loop, model: Any, batches: list[Any], teacher: Any) -> None:
    """Refit a pruned model to a teacher, or without one re-estimate its batch norms."""
    from lilliput.recovery.recalibrate import recalibrate
    from lilliput.recovery.reconstruct import reconstruct

    if teacher is None:
        recalibrate(model, batches, loop.forward)
    else:
        reconstruct(model, batches, teacher, progress=False)


def shrink(loop: Loop, model: Any, inputs: Any, options: dict[str, Any], folder: Path) -> Any:
    """Cut channels out, and write into a folder how to do it again; return the result."""
    from lilliput.speedup.shrink import speedup

    result = speedup(model, inputs, **options, inplace=not loop.writes_models)
    if loop.writes_models:
        loop.write_shrunk(result.model, model, folder)
    else:
        result.save(folder)
    return result


def shrink_again(loop: Loop, model: Any, folder: Path) -> Any:
    """Return a model of the original class, shrunk as a folder says."""
    from lilliput.speedup.saved import load

    return loop.read_shrunk(model, folder) if loop.writes_models else load(model, folder)


def export(
    loop: Loop, model: Any, format_: str, path: Path, inputs: Any, samples: Any, options: Any
) -> Any:
    """Write a file for one of the targets, and return the ExportResult."""
    write = target_named(format_).writer(loop.name).load()
    return write(model, path, inputs, **{"calibration": samples, **options})
