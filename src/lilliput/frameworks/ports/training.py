"""The framework interface of the engine: training, running, and learning from a teacher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.errors import StageError
from lilliput.frameworks.features import Run


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

    def check_regrowth(self, optimizer: Any, wrappers: Sequence[Any]) -> None:  # noqa: B027
        """Raise if it is unknown what the optimizer remembers of a weight that is new to it."""

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
        self, wrapper: Any, names: Sequence[str], penalty: Callable[..., Any], optimizer: Any
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


class Running(ABC):
    """Run a model on data, and report how it is running."""

    name: ClassVar[str]

    @abstractmethod
    def run(
        self,
        model: Any,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None,
        task: Callable[[], None] | None = None,
    ) -> None:
        """Run batches through a model in eval mode; with a task, ``forward`` is a loss to differentiate."""

    @abstractmethod
    def feeder(self, example_inputs: Any) -> Callable[..., Any]:
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
        """Return by how much each change of a weight moves the loss of each example.

        Given are what the layer has read and the gradient of what it has returned. The mean of each
        channel may be kept, as a corrected bias keeps it.
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


class Teaching(ABC):
    """Let a student learn from a teacher."""

    @abstractmethod
    def modules(self, model: Any) -> list[LayerInfo]:
        """Return the model itself, as ``features.MODEL``, and everything in it that can be called."""

    @abstractmethod
    def frozen_copy(self, model: Any) -> Any:
        """Return a frozen copy of the model, or raise if it has already been changed."""

    @abstractmethod
    def move_like(self, teacher: Any, model: Any) -> None:
        """Move a teacher to the device of a model."""

    @abstractmethod
    def record(self, model: Any, wrappers: Sequence[Any], task: Callable[[Run], None]) -> list[Any]:
        """Call ``task(run)`` after each forward pass with gradients; return removable handles."""

    @abstractmethod
    def outputs_of(
        self, model: Any, names: Sequence[str], run: Run, forward: Any = None
    ) -> dict[str, list[Any]]:
        """Call a model as in a run, but in evaluation mode without gradients; return the outputs of layers.

        ``forward(model)`` replaces that call.
        """

    @abstractmethod
    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return example inputs as the arguments of a model."""

    @abstractmethod
    def learned(self, array: Any, like: Any) -> Any:
        """Return a NumPy array as a trainable tensor on the device of another tensor."""

    @abstractmethod
    def channel_axis(self, rank: int) -> int:
        """Return the channel axis of a tensor with that many axes, by the framework's convention."""

    @abstractmethod
    def are_shares(self, tensor: Any, axis: int) -> bool:
        """Whether values are known to be probabilities, which add up to 1 along an axis."""

    def ends_in_softmax(self, module: Any) -> bool:
        """Whether the output of a layer is known, before it runs, to come from a softmax."""
        return False

    def average_gradients(self, parameters: Sequence[Any]) -> list[Any]:
        """Average gradients over processes in each backward; return removable handles."""
        return []

    def check_inputs(self, run: Run) -> None:  # noqa: B027
        """Raise if the inputs of a run have been written to since."""

    def check_trainable(self, tensor: Any, name: str) -> None:  # noqa: B027
        """Raise if no gradient flows through the output of a layer."""
