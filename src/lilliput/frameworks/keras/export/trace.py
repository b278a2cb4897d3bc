"""Trace the simulation as a TensorFlow function, with a placeholder for each quantization."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from keras import tree

from lilliput.config.layer import QuantType
from lilliput.errors import ExportError, LilliputError
from lilliput.extras import require
from lilliput.frameworks import backend_of
from lilliput.frameworks.exporting.simulation import (
    Array,
    Key,
    Mark,
    Placement,
    Simulation,
    Tensor,
    as_simulated,
    key_of,
    to_array,
)
from lilliput.frameworks.keras.export.simulation import call, reason_of
from lilliput.frameworks.logs import quiet_tensorflow
from lilliput.frameworks.wrapping import marking

NEEDS_TENSORFLOW = "exporting a Keras model needs TensorFlow: pip install 'lilliput[litert]'"


@dataclass(eq=False)
class Trace:
    """A TensorFlow function that computes the same as a model, and the quantizations of its marks."""

    function: Any
    concrete: Any
    specs: list[Any]
    marks: list[Mark]


Activation = Callable[[Tensor, Placement, int], Tensor]


def require_tensorflow() -> Any:
    """Return the module, or raise an error with installation instructions."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return require("tensorflow", NEEDS_TENSORFLOW)


def put_debug_identity(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor passed through an operator that only has a name."""
    return require_tensorflow().raw_ops.DebugIdentityV2(input=tensor, op_name=name, name=name)


def put_leaky_relu(tensor: Tensor, slope: float) -> Tensor:
    """Return a tensor passed through a LeakyRelu."""
    return require_tensorflow().nn.leaky_relu(tensor, alpha=slope)


def trace(
    simulation: Simulation,
    activation: Activation,
    dynamic_batch: bool,
    weights: Mapping[Key, str] = MappingProxyType({}),
) -> Trace:
    """Return a model as a function, with ``activation`` instead of the quantizers of activations.

    ``activation(tensor, placement, number)`` gets the number of the mark. Placements without an integer grid
    are traced as the operations of their algorithm. Quantized weights are constants of the function,
    except those named by ``weights``: these are additional inputs after those of the model.
    """
    tensorflow = require_tensorflow()
    numbers = {placement.key: i for i, placement in enumerate(simulation.placements)}
    calls: dict[tuple[int, int], int] = defaultdict(int)
    marks: list[Mark] = []

    def mark(wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        number = numbers[key_of(wrapper, kind)]
        placement = simulation.placements[number]
        if placement.is_weight:
            return (given[placement.key],) if placement.key in given else (placement.weight(),)
        if placement.qparams is None or placement.qparams.is_result:
            tensors = as_simulated(wrapper, kind, tensors)
        if placement.qparams is None:
            return tensors
        found = []
        for position, tensor in enumerate(tensors):
            marks.append(Mark(number, position, calls[number, position]))
            calls[number, position] += 1
            found.append(activation(tensor, placement, len(marks) - 1))
        return tuple(found)

    args, given = simulation.inputs[0], dict[Key, Tensor]()
    arrays = [to_array(x) for x in tree.flatten(args)]

    def run(*flat: Tensor) -> Any:
        given.update(zip(weights, flat[len(arrays) :], strict=True))
        packed = tree.pack_sequence_as(args, flat[: len(arrays)])
        with marking(mark, backend_of(simulation.model).quantizers_in(simulation.model)):
            return tree.flatten(call(simulation.model, (packed, {})))

    specs = [
        tensorflow.TensorSpec(shape, x.dtype, f"lilliput_input_{i}")
        for i, (shape, x) in enumerate(_shapes(arrays, dynamic_batch))
    ]
    held = {
        placement.key: placement.weight()
        for placement in simulation.placements
        if placement.is_weight
    }
    specs += [
        tensorflow.TensorSpec(held[key].shape, held[key].dtype, name)
        for key, name in weights.items()
    ]
    with quiet_tensorflow():
        try:
            function = tensorflow.function(run, input_signature=specs, autograph=False)
            return Trace(function, function.get_concrete_function(), specs, marks)
        except LilliputError:
            raise
        except Exception as error:
            text = f"TensorFlow cannot trace {type(simulation.model).__name__}: "
            text += reason_of(error)
            if dynamic_batch:
                text += " If the model needs this batch size, pass dynamic_batch=False."
            raise ExportError(text) from error


def _shapes(arrays: list[Array], dynamic_batch: bool) -> list[tuple[list[int | None], Array]]:
    """Return the shapes for tracing: the first axis is None if it is that of the batch."""
    rows = next((len(x) for x in arrays if x.ndim), None)
    found = []
    for array in arrays:
        is_open = dynamic_batch and array.ndim and len(array) == rows
        found.append(([None, *array.shape[1:]] if is_open else list(array.shape), array))
    return found
