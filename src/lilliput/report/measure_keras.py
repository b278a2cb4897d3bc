"""What a Keras model holds and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.report.executed import default_threads


class MeasuredKeras:
    """How Keras models are counted and called."""

    def counts(self, model: Any, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""
        weights = [np.asarray(x) for x in model.get_weights()]
        trained = [keras.ops.convert_to_numpy(x) for x in model.trainable_variables]
        return {
            "parameters": sum(x.size for x in trained),
            "nonzeros": sum(int(np.count_nonzero(x)) for x in trained),
            "macs": count_macs(model, inputs),
            "bytes": sum(x.nbytes for x in weights),
        }

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

    def batch(self, inputs: Any) -> int:
        """Return how many examples the inputs hold."""
        first = inputs
        while isinstance(first, (tuple, list, Mapping)):
            first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
        return max(len(first), 1)


def count_macs(model: Any, inputs: Any) -> int | None:
    """Return the multiplications for one example; None where the graph cannot be read."""
    from lilliput.speedup.keras.analysis import analyse
    from lilliput.speedup.keras.collect import collect

    try:
        groups = collect(analyse(model, inputs))
    except UnsupportedModelError:
        return None
    return groups.count_macs()


measured = MeasuredKeras()
