"""Parameters, size and costs of a Keras model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from lilliput.frameworks.keras.sidecar import computed_in
from lilliput.frameworks.keras.snapshot import watch
from lilliput.frameworks.keras.variables import OURS
from lilliput.frameworks.work import batch_of, default_threads


class MeasuredKeras:
    """Counts and calls Keras models."""

    def counts(self, model: Any, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""
        return {
            **self.stored(model),
            "macs": count_macs(model, inputs) // self.batch(model, inputs),
        }

    def stored(self, model: Any) -> dict[str, int]:
        """Return parameters, nonzeros and bytes."""
        weights = [np.asarray(x) for x in model.get_weights()]
        computed = computed_in(model)
        trained = [_value(x, computed) for x in _own(model.trainable_variables)]
        return {
            "parameters": sum(x.size for x in trained),
            "nonzeros": sum(int(np.count_nonzero(x)) for x in trained),
            "bytes": sum(x.nbytes for x in weights),
        }

    def untouched(self, model: Any) -> Any:
        """Return the model: a call for inference does not change it."""
        return model

    def fresh(self, inputs: Any) -> Any:
        """Return the inputs: arrays are not written to."""
        return inputs

    def caller(self, model: Any, inputs: Any) -> Callable[[], Any]:
        """Return a function that runs the model once, compiled as ``predict`` compiles it."""
        return lambda: model.predict_on_batch(inputs)

    def runtime(self) -> str:
        """Return the name of the framework and its threads."""
        threads = default_threads()
        return (
            f"Keras {keras.__version__} on {keras.backend.backend()}, "
            f"{threads} thread{'s' if threads > 1 else ''}"
        )

    def batch(self, model: Any, inputs: Any) -> int:
        """Return the number of examples in the inputs."""
        return batch_of(keras.tree.flatten(inputs)) or 1


def _own(variables: list[Any]) -> list[Any]:
    """Return variables without those that an algorithm learns."""
    return [x for x in variables if not str(x.name).startswith(OURS)]


def _value(variable: Any, computed: dict[int, Any]) -> Any:
    found = computed.get(id(variable))
    return keras.ops.convert_to_numpy(variable if found is None else found)


def count_macs(model: Any, inputs: Any) -> int:
    """Return the multiplications of one call."""
    return sum(work.macs for work in watch(model, inputs, timing=False)[1].values())


measured = MeasuredKeras()
