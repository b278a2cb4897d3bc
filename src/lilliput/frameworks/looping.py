"""The framework interface of recipes: its training loop, and the model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lilliput.calling import call


class Functions(Protocol):
    """The user's functions that a loop needs; ``loss`` may be the name of a common one."""

    @property
    def train(self) -> Any:
        """Trains one epoch; None for the plain loop."""

    @property
    def loss(self) -> Any:
        """The loss of the plain loop."""


@dataclass(frozen=True, eq=False)
class Epoch:
    """One training epoch of a step.

    Parameters
    ----------
    current : Compressor, optional
        The compressor whose schedule advances.
    number, count : int
        Index of the epoch, from 0, and number of epochs.
    distiller : Distiller, optional
        Its loss is added to the loss, or replaces it if ``is_alone``.
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
        """Call the user's function and return its result."""
        named = {"epoch": self.number, "epochs": self.count}
        return call(self.functions.train, self.model, self.optimizer, self.batches, **named)


class Loop(Protocol):
    """How one framework trains, writes and seeds."""

    name: str

    def seed(self, number: int) -> None:
        """Seed the generators of the framework."""

    def threads(self) -> int | None:
        """Return the number of threads, if known."""

    def set_threads(self, count: int | None) -> None:
        """Set the number of threads, if possible."""

    def tensors(self, model: Any) -> dict[str, Any]:
        """Return all tensors of a model's state, by name."""

    def load(self, model: Any, tensors: dict[str, Any]) -> None:
        """Load such tensors."""

    def check_training(self, functions: Functions) -> str:
        """Return what is missing for training, or an empty string."""

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
        """Return an optimizer for training a cut network without tuning."""

    def set_rate(self, optimizer: Any, rate: float) -> None:
        """Set the learning rate of an optimizer."""

    def stop_training(self, compressors: list[Any]) -> None:
        """Remove the optimizer from compressors."""

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return the state of an optimizer, as nested plain values and tensors."""

    def load_optimizer(self, optimizer: Any, state: Any) -> None:
        """Load such a state."""

    def train(self, epoch: Epoch) -> None:
        """Train one epoch."""

    def calibrate(self, compressor: Any, batches: Any, functions: Functions) -> None:
        """Run batches through a compressor that uses data."""

    def forward(self, model: Any, inputs: Any) -> Any:
        """Call a model with the inputs of a batch, in evaluation mode."""

    def evaluation_mode(self, model: Any) -> None:
        """Put a model into evaluation mode."""

    def training_of(self, model: Any) -> Callable[[Any], None]:
        """Return a function that makes a shrunk model train like this one."""

    def write_model(self, model: Any, compressors: list[Any], folder: Path) -> Path:
        """Write the plain weights, with masks and weight quantization applied; return the file."""

    def place(self, value: Any, model: Any) -> Any:
        """Return inputs on the device of the model."""

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of a batch's inputs."""
