"""What a run asks of a framework; ``torch.py`` and ``keras.py`` answer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from lilliput.recipes.functions import Functions


class Framework(Protocol):
    """One framework's way of training, shrinking, writing and seeding."""

    name: str

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

    def evaluation_mode(self, model: Any) -> None:
        """Make a model compute as it will in use."""

    def recover(self, model: Any, batches: list[Any], teacher: Any) -> None:
        """Refit a pruned model to a teacher, or without one re-estimate its batch norms."""

    def speedup(self, model: Any, inputs: Any, options: dict[str, Any], folder: Path) -> Any:
        """Cut channels out, and write the plan into a folder; return the result."""

    def shrink_again(self, model: Any, folder: Path) -> Any:
        """Return a model of the original class, shrunk as the plan in a folder says."""

    def export(
        self, model: Any, format_: str, path: Path, inputs: Any, samples: Any, options: Any
    ) -> Any:
        """Write a file, and return the ExportResult."""

    def write_model(self, model: Any, compressors: list[Any], folder: Path) -> Path:
        """Write the plain weights, masks and weight quantization applied; return the file."""

    def place(self, value: Any, model: Any) -> Any:
        """Return inputs where the model is."""

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of a batch's inputs."""


def framework_named(name: str) -> Framework:
    """Return the part of a framework, importing it."""
    found: Framework = import_module(f"lilliput.recipes.{name}").framework
    return found
