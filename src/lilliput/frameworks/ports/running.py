"""The framework interface of the engine: running a model on data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo

Forward = Callable[..., Any]  # forward(model, batch)
Task = Callable[[], None]


class Running(ABC):
    """Run a model on data, and report how it is running."""

    name: ClassVar[str]

    @abstractmethod
    def run(
        self, model: Any, batches: Iterable[Any], forward: Forward | None, task: Task | None = None
    ) -> None:
        """Run batches through a model in eval mode; with a task, ``forward`` is a loss to differentiate."""

    @abstractmethod
    def feeder(self, example_inputs: Any) -> Forward:
        """Return ``forward(model, batch)``, which calls a model with a batch of a data loader."""

    @abstractmethod
    def remember(self, model: Any) -> Any:
        """Record all values and modes of a model; ``restore()`` and ``restore_modes()`` restore them."""

    def on_gradient(self, tensor: Any, task: Callable[[Any], None]) -> None:
        """Call ``task(gradient)`` when the gradient of a tensor is computed."""
        raise NotImplementedError(f"{self.name} does not expose gradients of activations.")

    def probe(self, outputs: Any) -> Any:
        """Return a number whose gradient measures, on average, how much outputs depend on a tensor."""
        raise NotImplementedError(f"{self.name} does not expose gradients of activations.")

    def sampled_loss(self, outputs: Any, seed: int) -> Any:
        """Return the loss of classes sampled from a model's own predictions; None if it has no classes."""
        raise NotImplementedError(f"{self.name} does not expose gradients of activations.")

    def watch_effects(
        self, layer: LayerInfo, task: Callable[..., None], weight_only: bool = False
    ) -> list[Any]:
        """Call ``task(input, its gradient through this layer alone, output, its gradient)`` in backward.

        For a task about the weight alone, the second and the third may be None.
        """
        raise NotImplementedError(f"{self.name} shows no gradients of activations.")

    def weight_effects(
        self,
        layer: LayerInfo,
        changes: Sequence[Any],
        inputs: Any,
        gradient: Any,
        keeps_means: bool = False,
    ) -> list[Any]:
        """Return how much each change of a weight changes the loss of each example.

        ``inputs`` are the layer's inputs, ``gradient`` is that of its outputs. With ``keeps_means``, the
        mean of each output channel is preserved, as by bias correction.
        """
        raise NotImplementedError(f"{self.name} runs no layer with another weight.")

    def is_activated(self, layer: LayerInfo) -> bool:
        """Whether a layer applies an activation function of its own to its output."""
        return False

    def is_tracing(self) -> bool:
        """Whether a graph is being traced, so that tensors have no values."""
        return False

    def is_recomputing(self) -> bool:
        """Whether this forward pass repeats an earlier one within backward (activation checkpointing)."""
        return False

    def when_recomputing(self, like: Any) -> Any:
        """Return a tensor flag for the same in compiled code; None where :meth:`is_recomputing` works."""
        return None

    def may_be_recomputed(self) -> bool:
        """Whether this forward pass may be repeated within backward."""
        return False

    def from_array(self, array: Any) -> Any:
        """Return a NumPy array as a model input."""
        return array

    @abstractmethod
    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of this framework."""

    @abstractmethod
    def no_grad(self) -> AbstractContextManager[Any]:
        """A context in which no gradient is recorded."""
