"""Keras for the engine: a student and its teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.features import Run
from lilliput.frameworks.keras import features, running
from lilliput.frameworks.keras.wrapper import ModuleWrapper
from lilliput.frameworks.ports.teaching import Teaching

Tensor = Any


class KerasTeaching(Teaching):
    """Let a student learn from a teacher."""

    def modules(self, model: Any) -> list[LayerInfo]:
        """Return the model and every layer in it; see :mod:`features`."""
        return features.list_modules(model)

    def frozen_copy(self, model: Any) -> Any:
        """Return a copy that is not trained."""
        return features.frozen_copy(model)

    def shared_with(self, teacher: Any, model: Any) -> str | None:
        """Return the first variable or layer that is also the teacher's."""
        return features.shared_with(teacher, model)

    def move_like(self, teacher: Any, model: Any) -> None:
        """Do nothing: Keras places variables itself."""

    def record(
        self, model: Any, wrappers: Sequence[ModuleWrapper], task: Callable[[Run], None]
    ) -> list[Any]:
        """Observe the layers and the model itself."""
        return [features.Recorder(model, wrappers, task)]

    def outputs_of(
        self, model: Any, names: Sequence[str], run: Run, forward: Any = None
    ) -> dict[str, list[Any]]:
        """Call a model for inference, without gradients."""
        return features.outputs_of(model, names, run, forward)

    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs as ``fit`` takes them: as a single argument."""
        return (running.inputs_of(example_inputs),), {}

    def learned(self, array: Any, like: Tensor) -> Any:
        """Return an array in the precision of a tensor; the wrapper turns it into a variable."""
        return np.asarray(array, keras.backend.standardize_dtype(like.dtype))

    def channel_axis(self, model: Any, module: Any, rank: int) -> int | None:
        """Return the axis by the data format of the layer, or of those around it; the last one by default."""
        return features.channel_axis(model, module, rank)

    def are_shares(self, tensor: Tensor, axis: int) -> bool:
        """Whether values are probabilities, if they are known."""
        return features.are_shares(tensor, axis)

    def ends_in_softmax(self, module: Any) -> bool:
        """Whether the output of a layer is known to come from a softmax."""
        return features.ends_in_softmax(module)
