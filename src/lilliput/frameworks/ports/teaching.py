"""The framework interface of the engine: learning from a teacher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.features import Run


class Teaching(ABC):
    """Let a student learn from a teacher."""

    @abstractmethod
    def modules(self, model: Any) -> list[LayerInfo]:
        """Return the model itself, as ``features.MODEL``, and everything in it that can be called."""

    @abstractmethod
    def frozen_copy(self, model: Any) -> Any:
        """Return a frozen copy of the model, or raise if it has already been changed."""

    @abstractmethod
    def shared_with(self, teacher: Any, model: Any) -> str | None:
        """Return the name of a tensor or layer that a teacher shares with a model, if there is one."""

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
    def channel_axis(self, model: Any, module: Any, rank: int) -> int | None:
        """Return the axis of channels of a layer's output with ``rank`` axes; None if it is ambiguous."""

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

    def check_result(self, run: Run, compared: Sequence[Any]) -> None:  # noqa: B027
        """Raise if a compared part of the model's output has been written to since."""

    def check_trainable(self, tensor: Any, name: str) -> None:  # noqa: B027
        """Raise if no gradient flows through the output of a layer."""
