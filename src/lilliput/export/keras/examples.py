"""Inputs to trace and compare with: those of calibration, or random ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import tree

from lilliput.errors import ExportError
from lilliput.export.keras.simulation import as_inputs
from lilliput.export.places import Array, Inputs
from lilliput.frameworks.keras.graph import function_of

_ROWS = 4


def quantizers_on(model: Any) -> list[Any]:
    """Return the quantizers at work on a model."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for wrapper in getattr(vars(layer).get("_lilliput"), "wrappers", ()):
            if wrapper.compressor.kind == "quantizer":
                found[id(wrapper.compressor)] = wrapper.compressor
    return list(found.values())


def sample_inputs(model: Any) -> list[Inputs]:
    """Return what the model was called with in calibration, as far as it was kept."""
    kept = [
        x for quantizer in quantizers_on(model) for x in getattr(quantizer, "sample_inputs", ())
    ]
    return [as_inputs(tuple(args)) for args, _ in kept]


def examples_for(model: Any) -> Inputs:
    """Return random inputs of the shapes that a model says it takes."""
    function = function_of(model)
    if function is None:
        raise ExportError(
            f"{type(model).__name__} does not say what it takes; give example_inputs."
        )
    generator = np.random.default_rng(0)
    return (tree.map_structure(lambda x: _random(x, generator), function.input),), {}


def _random(tensor: Any, generator: np.random.Generator) -> Array:
    shape = [_ROWS if i == 0 and size is None else size for i, size in enumerate(tensor.shape)]
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if None in shape or not dtype.startswith("float"):
        raise ExportError(
            f"input {tensor.name!r} ({dtype}, shape {tuple(tensor.shape)}) cannot be made up; give "
            "example_inputs."
        )
    return generator.standard_normal(shape).astype(np.float32)
