"""Run the simulation of a Keras model, and record its quantizer placements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lilliput.config.layer import QuantType
from lilliput.errors import ExportError
from lilliput.frameworks.exporting.simulation import (
    Array,
    Inputs,
    Simulation,
    Tensor,
    as_simulated,
    first_line,
    key_of,
    model_under,
    numbered,
    to_array,
)
from lilliput.frameworks.exporting.sizes import BATCH
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.kernels import checked_way
from lilliput.frameworks.wrapping import Marker

_ROWS = 4


@dataclass(eq=False)
class KerasSimulation(Simulation):
    """The simulation of a model in Keras."""

    def call(self) -> Any:
        """Return the model's outputs in inference."""
        return call(self.model, self.inputs)

    def marker(self, others: Marker) -> Marker:
        """Return a marker with precomputed weights, which would otherwise take most of the time."""
        weights = {
            placement.key: placement.weight()
            for placement in self.placements
            if placement.is_weight
        }

        def mark(wrapper: Any, kind: QuantType, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if kind is not QuantType.WEIGHT:
                return others(wrapper, kind, given)
            held = weights.get(key_of(wrapper, kind))
            if held is None:
                return as_simulated(wrapper, kind, given)
            return (ops.convert_to_tensor(held, dtype=given[0].dtype),)

        return mark

    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""
        return list(tree.flatten(nested))

    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with another number of rows; by default one, or two if there is one."""
        arrays = [to_array(x) for x in tree.flatten(self.inputs[0])]
        batch = arrays[0].shape[0] if arrays and arrays[0].ndim else 0
        rows = sizes.get(BATCH, 0) or (1 if batch > 1 else 2)

        def change(x: Any) -> Any:
            array = to_array(x)
            if not array.ndim or len(array) != batch:
                return x
            return array[np.arange(rows) % batch]

        return tree.map_structure(change, self.inputs[0]), {}

    def input_names(self) -> list[str]:
        """Return the model's names of its inputs, or numbers."""
        paths = [path for path, _ in tree.flatten_with_path(self.inputs[0])]
        if all(len(path) == 2 and isinstance(path[1], str) for path in paths):
            return [str(path[1]) for path in paths]  # a dict as the only argument
        function = function_of(self.model)
        names = [] if function is None else [str(x.name) for x in function.inputs]
        if len(names) == len(paths) and len(set(names)) == len(names):
            return names
        return numbered(len(paths), "input")

    def output_names(self, output: Any) -> list[str]:
        """Return the keys of a dict of tensors, or numbers."""
        paths = [path for path, _ in tree.flatten_with_path(output)]
        if isinstance(output, Mapping) and all(len(path) == 1 for path in paths):
            return [str(path[0]) for path in paths]
        return numbered(len(paths), "output")

    def reason_of(self, error: BaseException) -> str:
        """Return an error message as one line, without the lines that Keras adds."""
        return reason_of(error)


def simulate(model: Any, inputs: Inputs) -> KerasSimulation:
    """Run a model for inference with correct kernels, and record its quantizer placements."""
    checked_way(model, ("eager",))
    return KerasSimulation.of(model, inputs)


def model_of(quantizer_or_model: Any) -> Any:
    """Return the model to export, or raise an error with the reason."""
    model = model_under(quantizer_or_model)
    if not isinstance(model, keras.Model):
        raise ExportError(
            f"received {type(model).__name__}, expected a compressor or a keras.Model."
        )
    if not model.built:
        raise ExportError(f"{type(model).__name__} is not built yet; call it on a batch first.")
    for layer in model._flatten_layers():
        if layer.compute_dtype in ("float16", "bfloat16") and layer.weights:
            raise ExportError(
                f"layer {layer.name!r} computes in {layer.compute_dtype}; runtimes quantize float32: "
                "build the model with the dtype policy 'float32' and load the weights into it."
            )
    return model


def as_inputs(example_inputs: Any) -> Inputs:
    """Return example inputs as arguments of ``call``: a tuple contains them, anything else is the first."""
    args = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if not tree.flatten(args):
        raise ExportError("example_inputs: received nothing, expected the inputs of the model.")
    try:
        return tree.map_structure(_as_array, args), {}
    except (TypeError, ValueError) as error:
        raise ExportError(
            f"example_inputs: expected arrays, or a list, tuple or dict of them: {first_line(error)}"
        ) from error


def like_example(batch: Any, inputs: Inputs) -> Inputs:
    """Return a batch as such arguments."""
    return as_inputs(batch)


def _as_array(value: Any) -> Array:
    array = to_array(value)
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise TypeError(f"received {type(value).__name__}")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def plain_source(model: Any, example_inputs: Any) -> tuple[Any, Any]:
    """Return a copy of a model without compressors, and the input of ``predict_on_batch``."""
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    args = as_inputs(example_inputs)[0]
    return plain, args[0] if len(args) == 1 else list(args)


def call(model: Any, inputs: Inputs) -> Any:
    """Return the model's outputs in inference."""
    return model(*inputs[0], training=False, **inputs[1])


def reason_of(error: BaseException) -> str:
    """Return an error message as one line, without the lines that Keras adds."""
    plain = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def examples_for(model: Any) -> Inputs:
    """Return random inputs of the shapes that a model declares."""
    function = function_of(model)
    if function is None:
        raise ExportError(
            f"{type(model).__name__} does not declare its inputs; pass example_inputs."
        )
    generator = np.random.default_rng(0)
    return (tree.map_structure(lambda x: _random(x, generator), function.input),), {}


def _random(tensor: Any, generator: np.random.Generator) -> Array:
    shape = [_ROWS if i == 0 and size is None else size for i, size in enumerate(tensor.shape)]
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if None in shape or not dtype.startswith("float"):
        raise ExportError(
            f"input {tensor.name!r} ({dtype}, shape {tuple(tensor.shape)}) cannot be generated; pass "
            "example_inputs."
        )
    return generator.standard_normal(shape).astype(np.float32)
