"""Run a Keras model as it is simulated, and note where it is quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError, ExportError, LilliputError
from lilliput.export.arguments import model_under
from lilliput.export.places import (
    Array,
    Inputs,
    Key,
    Marker,
    Place,
    Simulation,
    Tensor,
    first_line,
    key_of,
    to_array,
)
from lilliput.frameworks import backend_of
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.kernels import checked_way
from lilliput.frameworks.wrapping import marking
from lilliput.ops.qparams import QParams


@dataclass(eq=False)
class KerasSimulation(Simulation):
    """What the model does in Keras."""

    def again(self, inputs: Inputs, keep: bool = False) -> Simulation:
        """Run the model on other inputs; ``keep`` what every quantizer returns."""
        if keep:
            return simulate(self.model, inputs, keep)
        other = replace(self, inputs=inputs)
        with explained(self.model, inputs):
            outputs = other.run(lambda w, kind, given: tuple(w.compressor.run(w, kind, given)))
        return replace(other, outputs=outputs)

    def run(self, marker: Marker) -> list[Tensor]:
        """Run the model on the inputs with a marker in place of the quantizers of activations."""
        # Quantizing them again would take most of the time.
        weights = {place.key: place.weight() for place in self.places if place.is_weight}

        def mark(wrapper: Any, kind: QuantType, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if kind is not QuantType.WEIGHT:
                return marker(wrapper, kind, given)
            return (ops.convert_to_tensor(weights[key_of(wrapper, kind)], dtype=given[0].dtype),)

        with marking(mark, backend_of(self.model).quantizers_in(self.model)):
            return list(tree.flatten(call(self.model, self.inputs)))

    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""
        return list(tree.flatten(nested))

    def other_size(self, rows: int = 0) -> Inputs:
        """Return the inputs with other ``rows``; by default one in place of several, or two of one."""
        arrays = [to_array(x) for x in tree.flatten(self.inputs[0])]
        batch = arrays[0].shape[0] if arrays and arrays[0].ndim else 0
        rows = rows or (1 if batch > 1 else 2)

        def change(x: Any) -> Any:
            array = to_array(x)
            if not array.ndim or len(array) != batch:
                return x
            return array[np.arange(rows) % batch]

        return tree.map_structure(change, self.inputs[0]), {}

    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with another number of rows."""
        return self.other_size(sizes.get("batch", 0))

    def tensor(self, array: Array, like: Tensor) -> Tensor:
        """Return an array as a tensor of the backend."""
        return ops.convert_to_tensor(array, dtype=like.dtype)


def model_of(quantizer_or_model: Any) -> Any:
    """Return the model to export, or say why it is none."""
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
    """Return example inputs as arguments of ``call``: a tuple holds them, anything else is the first."""
    args = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if not tree.flatten(args):
        raise ExportError(
            "example_inputs: received nothing, expected what the model is called with."
        )
    try:
        return tree.map_structure(_as_array, args), {}
    except (TypeError, ValueError) as error:
        raise ExportError(
            f"example_inputs: expected arrays, or a list, tuple or dict of them: {first_line(error)}"
        ) from error


def _as_array(value: Any) -> Array:
    array = to_array(value)
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise TypeError(f"received {type(value).__name__}")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def plain_source(model: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Return a copy of a model without compressors, and what ``predict_on_batch`` takes."""
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    args = inputs[0]
    return plain, args[0] if len(args) == 1 else list(args)


def call(model: Any, inputs: Inputs) -> Any:
    """Return what a model makes of inputs, in inference."""
    return model(*inputs[0], training=False, **inputs[1])


def simulate(model: Any, inputs: Inputs, keep: bool = False) -> KerasSimulation:
    """Run the model in inference; ``keep`` what every quantizer returns."""
    places: dict[Key, Place] = {}

    def record(wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = wrapper.compressor.run(wrapper, kind, tensors)
        place = places.setdefault(key_of(wrapper, kind), Place(wrapper, kind))
        if keep and not place.is_weight:
            place.results.append(results)
        return results

    with marking(record, backend_of(model).quantizers_in(model)), explained(model, inputs):
        checked_way(model, ("eager",))
        output = call(model, inputs)
    outputs = tree.flatten(output)
    arrays = [to_array(x) for x in outputs]
    if not outputs or any(not x.size or not np.isfinite(x).all() for x in arrays):
        raise ExportError(
            f"{type(model).__name__} returns nothing, NaN or infinity for the example inputs; give inputs "
            "as they occur."
        )
    for place in places.values():
        place.qparams = _qparams(place)
    return KerasSimulation(model, inputs, list(places.values()), outputs, _names(output))


@contextmanager
def explained(model: Any, inputs: Inputs) -> Iterator[None]:
    """Say on which inputs a model does not run."""
    try:
        yield
    except LilliputError:
        raise
    except Exception as error:
        shapes = [tuple(x.shape) for x in tree.flatten(inputs[0])]
        raise ExportError(
            f"{type(model).__name__} does not run on the example inputs (shapes {shapes}): "
            f"{reason_of(error)}"
        ) from error


def reason_of(error: BaseException) -> str:
    """Return what an error says in one line, without what Keras says around it."""
    plain = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _qparams(place: Place) -> QParams | None:
    quantizer = place.wrapper.compressor
    found = quantizer.qparams(place.wrapper, place.quant_type)
    if found is not None and not isinstance(found, QParams):
        raise AlgorithmError(
            f"{type(quantizer).__name__}.qparams() returned {type(found).__name__} for "
            f"{place.name}; expected a QParams, or None."
        )
    if found is None:
        return None
    # As arrays: variables cannot be read while a function is traced.
    return replace(found, scale=to_array(found.scale), zero_point=to_array(found.zero_point))


def _names(output: Any) -> list[str]:
    """Return what to call the outputs in the file: the keys of a dict, or numbers."""
    paths = [path for path, _ in tree.flatten_with_path(output)]
    if isinstance(output, Mapping) and all(len(path) == 1 for path in paths):
        return [str(path[0]) for path in paths]
    return ["output"] if len(paths) == 1 else [f"output_{i}" for i in range(len(paths))]


def input_names(simulation: Simulation) -> list[str]:
    """Return what to call the inputs in the file: as the model does, or numbers."""
    paths = [path for path, _ in tree.flatten_with_path(simulation.inputs[0])]
    if all(len(path) == 2 and isinstance(path[1], str) for path in paths):
        return [str(path[1]) for path in paths]  # a dict as the only argument
    function = function_of(simulation.model)
    names = [] if function is None else [str(x.name) for x in function.inputs]
    if len(names) == len(paths) and len(set(names)) == len(names):
        return names
    return ["input"] if len(paths) == 1 else [f"input_{i}" for i in range(len(paths))]
