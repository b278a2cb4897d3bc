"""Torch for the engine: a student and its teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.features import Run
from lilliput.frameworks.ports.teaching import Teaching
from lilliput.frameworks.torch import features
from lilliput.frameworks.torch.channels_of_outputs import channel_axis
from lilliput.frameworks.torch.process_group import processes
from lilliput.frameworks.torch.replicated import GradientMean
from lilliput.frameworks.torch.weights import is_sharded
from lilliput.frameworks.torch.wrapper import ModuleWrapper


class TorchTeaching(Teaching):
    """Let a student learn from a teacher."""

    def modules(self, model: nn.Module) -> list[LayerInfo]:
        """Return the model and every module in it; see :mod:`features`."""
        return features.list_modules(model)

    def frozen_copy(self, model: nn.Module) -> nn.Module:
        """Return a copy in eval mode without gradients."""
        return features.frozen_copy(model)

    def shared_with(self, teacher: nn.Module, model: nn.Module) -> str | None:
        """Return the first parameter, buffer or module that is also the teacher's."""
        return features.shared_with(teacher, model)

    def move_like(self, teacher: nn.Module, model: nn.Module) -> None:
        """Move a teacher to the device of a model's parameters."""
        features.move_like(teacher, model)

    def record(
        self, model: nn.Module, wrappers: Sequence[ModuleWrapper], task: Callable[[Run], None]
    ) -> list[Any]:
        """Hook the modules and the model itself."""
        return features.record(model, wrappers, task)

    def outputs_of(
        self, model: nn.Module, names: Sequence[str], run: Run, forward: Any = None
    ) -> dict[str, list[Any]]:
        """Run a model in eval mode without gradients, and restore its modes."""
        return features.outputs_of(model, names, run, forward)

    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a tensor, a tuple of arguments or a dict of named ones as arguments."""
        from lilliput.frameworks.torch.example_inputs import as_inputs

        return as_inputs(example_inputs)

    def learned(self, array: Any, like: Tensor) -> nn.Parameter:
        """Return an array as a parameter on the device of a tensor."""
        return features.learned(array, like)

    def channel_axis(self, model: nn.Module, module: nn.Module, rank: int) -> int | None:
        """Return 1 after convolutions, the last axis for a sequence of tokens."""
        return channel_axis(model, module, rank)

    def are_shares(self, tensor: Tensor, axis: int) -> bool:
        """Whether values are at least 0 and add up to 1."""
        return features.are_shares(tensor, axis)

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> list[Any]:
        """Average gradients at the end of each backward; sharded ones are averaged anyway."""
        whole = [p for p in parameters if not is_sharded(p)]
        return [GradientMean(whole)] if whole and processes() > 1 else []

    def check_inputs(self, run: Run) -> None:
        """Raise if inputs were written to in place."""
        features.check_inputs(run)

    def check_result(self, run: Run, compared: Sequence[Tensor]) -> None:
        """Raise if a compared part of the output was written to in place."""
        features.check_result(run, compared)

    def check_trainable(self, tensor: Tensor, name: str) -> None:
        """Raise if a tensor was computed without gradients."""
        features.check_trainable(tensor, name)
