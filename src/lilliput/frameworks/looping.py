"""What a recipe asks of a framework: its own training loop, and the model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lilliput.calling import call


class Functions(Protocol):
    """What a loop needs of the functions that the user wrote; ``loss`` may be the name of a common one."""

    @property
    def train(self) -> Any:
        """Trains one epoch, None for the plain loop."""

    @property
    def loss(self) -> Any:
        """What the plain loop minimizes."""


@dataclass(frozen=True, eq=False)
class Epoch:
    """One epoch of a step that trains.

    Parameters
    ----------
    current : Compressor, optional
        The compressor whose schedule moves.
    number, count : int
        Which epoch of how many, from 0.
    distiller : Distiller, optional
        What it adds to the loss is all of it if the distiller ``is_alone``.
    """

    model: Any
    optimizer: Any
    batches: Any
    functions: Functions
    current: Any = None
    number: int = 0
    count: int = 1
    distiller: Any = None

    def train_by_user(self) -> Any:
        """Call the user's function, and return what it returns."""
        named = {"epoch": self.number, "epochs": self.count}
        return call(self.functions.train, self.model, self.optimizer, self.batches, **named)


class Loop(Protocol):
    """One framework's way of training, writing and seeding."""

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

    def set_rate(self, optimizer: Any, rate: float) -> None:
        """Give an optimizer a learning rate."""

    def stop_training(self, compressors: list[Any]) -> None:
        """Make compressors forget their optimizer."""

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return what an optimizer knows, as nested plain values and tensors."""

    def load_optimizer(self, optimizer: Any, state: Any) -> None:
        """Put it back."""

    def train(self, epoch: Epoch) -> None:
        """Train one epoch."""

    def calibrate(self, compressor: Any, batches: Any, functions: Functions) -> None:
        """Run batches through a compressor that looks at data."""

    def forward(self, model: Any, inputs: Any) -> Any:
        """Call a model with the inputs of a batch, in evaluation mode."""

    def evaluation_mode(self, model: Any) -> None:
        """Make a model compute as it will in use."""

    def training_of(self, model: Any) -> Callable[[Any], None]:
        """Return what makes a model, once it is shrunk, train as it does now."""

    def write_model(self, model: Any, compressors: list[Any], folder: Path) -> Path:
        """Write the plain weights, masks and weight quantization applied; return the file."""

    def place(self, value: Any, model: Any) -> Any:
        """Return inputs where the model is."""

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of a batch's inputs."""
