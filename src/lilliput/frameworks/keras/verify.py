"""Compare a shrunk Keras model with the masked one: every tensor of their outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import tree

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.kernels import checked_runner
from lilliput.frameworks.keras.variables import to_array
from lilliput.graph.cuts import Array
from lilliput.ops import closeness

_SEED = 20_230
_BATCH = 2
# Largest difference of outputs caused by rounding, relative to the largest entry.
_ROUNDING = {"float64": 1e-8, "float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}


def rounding_of(model: Any) -> float:
    """Return the tolerance of outputs, given the precision of a model's layers."""
    used = {str(layer.compute_dtype) for layer in model._flatten_layers()}
    return max(_ROUNDING.get(dtype, 0.0) for dtype in (*used, "float64"))


@contextmanager
def double_precision() -> Iterator[None]:
    """Let the backend compute in double precision; JAX must be told to."""
    jax = sys.modules.get("jax") if keras.backend.backend() == "jax" else None
    if jax is None:
        yield
        return
    with jax.enable_x64(True):
        yield


def make_inputs(model: Any, example_inputs: Any) -> list[Any]:
    """Return two inputs for a model: the examples and a variation of them, or random inputs."""
    rng = np.random.default_rng(_SEED)
    if example_inputs is None:
        drawn = [_draw(model, tensor, rng) for tensor in function_of(model).inputs]
        example_inputs = tree.pack_sequence_as(function_of(model).input, drawn)
    elif isinstance(example_inputs, tuple):  # the arguments of a call, of which there is one
        example_inputs = example_inputs[0] if len(example_inputs) == 1 else list(example_inputs)
    return [example_inputs, tree.map_structure(lambda x: _vary(x, rng), example_inputs)]


def _draw(model: Any, tensor: Any, rng: np.random.Generator) -> Array:
    shape = [_BATCH if tensor.shape[0] is None else tensor.shape[0], *tensor.shape[1:]]
    if None in shape or "string" in tensor.dtype:
        raise UnsupportedModelError(
            f"input {tensor.name!r} of {tensor.dtype} and shape {tuple(tensor.shape)}: random values "
            "would not fit; pass example_inputs."
        )
    if "float" in tensor.dtype:
        return rng.standard_normal(shape).astype("float32")
    tables = [x for x in model._flatten_layers() if isinstance(x, keras.layers.Embedding)]
    most = 2 if tensor.dtype == "bool" else min((x.input_dim for x in tables), default=2)
    return rng.integers(0, most, shape).astype(tensor.dtype)


def _vary(array: Any, rng: np.random.Generator) -> Any:
    """Return other floating-point numbers, in case the given inputs reveal little."""
    values = to_array(array) if hasattr(array, "shape") else np.asarray(array)
    if not np.issubdtype(values.dtype, np.floating):
        return array
    spread = values.std() if values.size > 1 else 1.0
    return (values + rng.standard_normal(values.shape) * spread + 0.1).astype(values.dtype)


def answers(model: Any, inputs: list[Any]) -> list[Array]:
    """Return all output tensors of a model for inputs, in evaluation."""
    run = checked_runner(model)
    arrays = [_plain(to_array(x)) for given in inputs for x in tree.flatten(run(given))]
    if not any(np.isfinite(x).any() for x in arrays if np.issubdtype(x.dtype, np.floating)):
        raise UnsupportedModelError(
            f"{type(model).__name__} returns no finite number for the example inputs, so nothing can be "
            "checked; pass realistic inputs."
        )
    return arrays


def _plain(array: Array) -> Array:
    """Return an array of a type that NumPy can compute with, unlike bfloat16."""
    return array.astype("float32") if array.dtype.kind == "V" else array


def disturbed(arrays: Mapping[int, Array], masks: Mapping[int, Array]) -> dict[int, Array]:
    """Return weights with noise on all kept entries, so that no zero or one hides an error."""
    rng = np.random.default_rng(_SEED)
    found = {}
    for key, array in arrays.items():
        if key not in masks or not np.issubdtype(array.dtype, np.floating):
            found[key] = array
            continue
        spread = float(array.std()) if array.size > 1 else 0.0
        noise = rng.standard_normal(array.shape) * (0.1 * spread or 0.1)
        found[key] = (array + noise * masks[key]).astype(array.dtype)
    return found


def relative_error(expected: list[Array], received: list[Array]) -> float:
    """Return the largest error of all arrays, relative to their sizes; inf if shapes differ.

    Examples
    --------
    >>> relative_error([np.array([1.0, 4.0])], [np.array([1.0, 5.0])])
    0.25
    """
    if [x.shape for x in expected] != [x.shape for x in received]:
        return float("inf")
    worst = 0.0
    for a, b in zip(expected, received, strict=True):
        if not np.issubdtype(a.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(a, b) else float("inf"))
        else:
            worst = max(worst, closeness.relative_error(a, b))
    return worst
