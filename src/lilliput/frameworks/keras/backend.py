"""The Keras backend: the engine's protocols in one class."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.base import Backend
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.discover import DEFAULT_TYPES
from lilliput.frameworks.keras.ports.files import KerasProcesses, KerasStoring
from lilliput.frameworks.keras.ports.graphs import KerasGraphs, KerasQuantizing
from lilliput.frameworks.keras.ports.layers import KerasLayers, KerasMasks
from lilliput.frameworks.keras.ports.running import KerasRunning
from lilliput.frameworks.keras.ports.teaching import KerasTeaching
from lilliput.frameworks.keras.ports.training import KerasTraining


class KerasBackend(
    KerasLayers,
    KerasMasks,
    KerasTraining,
    KerasRunning,
    KerasTeaching,
    KerasGraphs,
    KerasQuantizing,
    KerasProcesses,
    KerasStoring,
    Backend,
):
    """The engine's interface, implemented for Keras."""

    name = "keras"
    default_types = DEFAULT_TYPES
    integer_outputs = frozenset({"_ConvNd", "Linear"})
    dynamic_inputs = frozenset()
    sees_every_step = False
    keeps_bounds = True
    shows_training = False


def strip(model: Any) -> Any:
    """Turn a compressed model into a plain one, and return it.

    Pruned weights are zeros; after a quantizer the weights are the trained float ones.

    Examples
    --------
    >>> import keras
    >>> from lilliput.keras import LevelPruner
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    >>> model = LevelPruner(model, [{"sparsity": 0.5}]).compress()
    >>> int(keras.ops.sum(strip(model).layers[0].kernel == 0))
    8
    """
    for compressor in reversed(models.compressors_of(model)):
        compressor.strip()
    return model


def create() -> KerasBackend:
    """Return the backend; the one name every backend module has."""
    return KerasBackend()
