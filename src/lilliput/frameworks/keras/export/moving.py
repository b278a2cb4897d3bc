"""Move a Keras model to a process whose Keras runs on another backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import tree

from lilliput.errors import ExportError
from lilliput.frameworks.exporting.simulation import Array, Inputs, to_array
from lilliput.frameworks.keras.export.simulation import call, reason_of
from lilliput.frameworks.keras.sidecar import sidecar_of


def backend_name() -> str:
    """Return the name of Keras's backend."""
    return str(keras.backend.backend())


def outputs_of(model: Any, inputs: Inputs) -> list[Array]:
    """Return the model's outputs in inference."""
    return [to_array(x) for x in tree.flatten(call(model, inputs))]


def save_model(model: Any, path: Path) -> None:
    """Write a model as a ``.keras`` file."""
    try:
        model.save(path)
    except Exception as error:
        raise ExportError(
            f"exporting needs TensorFlow, and {type(model).__name__} cannot be moved there from Keras on "
            f"{backend_name()} as a .keras file: {reason_of(error)}. Implement get_config() in its class and "
            "layers, or run with KERAS_BACKEND=tensorflow."
        ) from error


def load_model(path: Path) -> Any:
    """Read such a file."""
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        raise ExportError(
            f"exporting needs TensorFlow, and the model cannot be loaded there: {reason_of(error)}. "
            "Custom layers have to be in modules that can be imported; or run with "
            "KERAS_BACKEND=tensorflow."
        ) from error


def masks_of(model: Any) -> dict[str, Array]:
    """Return the masks of all pruners of a model; the zeros themselves are in the weights."""
    found: dict[str, Array] = {}
    for layer in model._flatten_layers():
        sidecar = sidecar_of(layer)
        for wrapper in () if sidecar is None else sidecar.wrappers:
            if wrapper.keeps_raw():
                raise ExportError(
                    f"layer {wrapper.name!r}: {type(wrapper.compressor).__name__} still computes its "
                    "weight, which a .keras file does not contain; strip() the pruner first."
                )
            if wrapper.compressor.kind == "pruner" and not wrapper.layer_info.is_parameter:
                mask = np.asarray(to_array(wrapper.weight_mask))
                found[wrapper.name] = found.get(wrapper.name, np.ones_like(mask)) * mask
    return found
