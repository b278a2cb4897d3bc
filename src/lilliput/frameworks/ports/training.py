"""The framework interface of the engine: following the training of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from lilliput.errors import StageError

Penalty = Callable[..., Any]  # penalty(*values), a scalar


class Training(ABC):
    """Follow the training of a model, and add parameters to its optimizer."""

    name: ClassVar[str]

    # Whether optimizer hooks see every step; not if training is compiled as a whole.
    sees_every_step: ClassVar[bool] = True

    # Whether activations and gradients can be observed in training; not if it is compiled.
    shows_training: ClassVar[bool] = True

    @abstractmethod
    def on_forward(self, wrapper: Any, collector: Callable[..., Any]) -> list[Any]:
        """Call ``collector(wrapper, input_, output)`` after each forward pass; return removable handles."""

    @abstractmethod
    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call ``task()`` after each optimizer step; return a removable handle."""

    @abstractmethod
    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call ``task()`` when the gradients of an optimizer step are complete; return a removable handle."""

    def callback(self, compressor: Any) -> Any:
        """Return a callback for the framework's own training loop."""
        raise StageError(
            f"callback() is for Keras models; with {self.name}, pass the optimizer to the compressor, or "
            "call step() and update_epoch() yourself."
        )

    @abstractmethod
    def check_optimizer(self, optimizer: Any, wrappers: Sequence[Any]) -> None:
        """Raise if the optimizer cannot be hooked or does not train the weights."""

    def missing_from(self, optimizer: Any, wrappers: Sequence[Any]) -> list[str]:
        """Return the layers whose weight is to be trained, but not by this optimizer."""
        return []

    def check_regrowth(self, optimizer: Any, wrappers: Sequence[Any]) -> None:  # noqa: B027
        """Raise if the optimizer's initial state for a new weight is unknown."""

    @abstractmethod
    def add_to_optimizer(self, optimizer: Any, wrappers: Sequence[Any]) -> list[Any]:
        """Add the wrappers' own parameters to the optimizer; return removable handles."""

    @abstractmethod
    def restart_optimizer(self, model: Any, optimizer: Any) -> None:
        """Reset an optimizer, or that of the model, to its initial state."""

    @abstractmethod
    def gradient(self, wrapper: Any, optimizer: Any = None) -> Any:
        """Return the full gradient of a wrapper's raw weight, or None.

        Without the loss scale that the optimizer has yet to divide by.
        """

    @abstractmethod
    def add_penalty(
        self, wrapper: Any, names: Sequence[str], penalty: Penalty, optimizer: Any
    ) -> None:
        """Add ``penalty(*values)`` to the loss: of a raw ``"weight"``, or of learned parameters.

        Called before each step where gradients are accessible, and once otherwise.
        """

    def show_gradients(self, wrappers: Sequence[Any], is_shown: bool) -> None:
        """Let pruned weights receive their full gradients, until they are masked again."""
        raise NotImplementedError(f"{self.name} does not expose gradients of weights.")

    @abstractmethod
    def pull_to_zero(self, wrappers: Sequence[Any], scale: float, optimizer: Any = None) -> None:
        """Add the subgradient of ``scale * |w|`` to the gradients of the raw weights."""

    def add_noise(self, wrappers: Sequence[Any]) -> list[Any]:
        """Add weight noise to the outputs of layers in training; return removable handles.

        A wrapper's ``log_variance`` is the logarithm of the variance of each weight.
        """
        raise NotImplementedError(f"{self.name} does not support noise on weights.")

    def penalize(self, wrappers: Sequence[Any], scale: float) -> None:  # noqa: B027
        """Add ``scale * |w|`` to the loss, 0 to stop; for frameworks without :meth:`pull_to_zero`."""

    @abstractmethod
    def is_training(self, model: Any) -> bool:
        """Whether the current forward pass is in training mode."""
