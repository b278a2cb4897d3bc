"""Run models with verified kernels: those for ``channels_first`` are sometimes wrong.

TensorFlow runs ``channels_first`` convolutions on some CPUs only, or only with XLA; and Keras 3.15 on
TensorFlow adds their bias along the last axis if its size equals the number of filters. A comparison of
two models that relies on such a layer shows the framework's error, or hides one of ours. So each such
layer is first compared with the same layer in ``channels_last``, on random numbers, and a model runs in
the first mode (graph, eager, XLA) in which all of its layers are correct.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import keras
import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.variables import to_array

Array = Any
Run = Callable[[Any], Any]

# The ways to run a model, in order of preference.
_WAYS = {"tensorflow": ("graph", "eager", "XLA"), "jax": ("XLA", "eager"), "torch": ("eager",)}
_WRONG = "is off by"
_TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# Tolerance for rounding in one layer, relative to its largest output.
_ROUNDING = {"float64": 1e-8, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
_SIZES = (
    *("filters", "kernel_size", "strides", "padding", "dilation_rate", "groups", "output_padding"),
    *("depth_multiplier", "pool_size", "keepdims", "dtype"),
)


class KernelError(UnsupportedModelError):
    """A framework kernel that a comparison relies on is wrong here, or does not run."""


def checked_runner(model: Any) -> Run:
    """Return a function that runs a model in inference with kernels that are correct on this machine."""
    return runner(model, checked_way(model))


def checked_way(model: Any, ways: Sequence[str] = ()) -> str:
    """Return a way to run a model with kernels that are correct on this machine.

    Parameters
    ----------
    model : keras.Model
        The model to run.
    ways : sequence of str
        The allowed ways, among ``"graph"``, ``"eager"`` and ``"XLA"``, in order of preference;
        by default all that the backend supports.

    Raises
    ------
    KernelError
        There is no such way; the message names a layer, the kernel and its error.
    """
    layers = list(_unusual_layers(model))
    if not layers:
        return _usual_way(model)
    faults: dict[str, tuple[Any, str]] = {}
    for way in ways or _WAYS[keras.backend.backend()]:
        fault = _first_fault(layers, way)
        if fault is None:
            return way
        faults[way] = fault
    told = "; ".join(
        f"{way}: layer {layer.name!r} ({unshadowed(type(layer)).__name__}, {layer.compute_dtype}) {fault}"
        for way, (layer, fault) in faults.items()
    )
    raise KernelError(
        f"the channels_first kernels of {_TITLES[keras.backend.backend()]} are unreliable here, so no output "
        f"of this model can be checked. {told}. Build the model with data_format='channels_last', or use "
        "another backend of Keras."
    )


def kernel_notes(model: Any) -> list[str]:
    """Return notes for users on the ways of running a model in which a kernel is wrong here."""
    layers, notes = list(_unusual_layers(model)), []
    for way in _WAYS[keras.backend.backend()] if layers else ():
        found = _first_fault(layers, way)
        if found is not None and found[1].startswith(_WRONG):
            layer, fault = found
            notes.append(
                f"run another way than {way} on this CPU: {_TITLES[keras.backend.backend()]}'s "
                f"channels_first kernel for layer {layer.name!r} {fault}"
            )
    return notes


def _first_fault(layers: Sequence[Any], way: str) -> tuple[Any, str] | None:
    return next(((x, fault) for x in layers if (fault := fault_of(x, way)) is not None), None)


def _usual_way(model: Any) -> str:
    """Return how to run a model without unusual layers: as a whole, if operations are compiled separately."""
    if keras.backend.backend() == "jax":
        return "XLA"
    grouped = any(getattr(layer, "groups", 1) != 1 for layer in model._flatten_layers())
    return "graph" if grouped and keras.backend.backend() == "tensorflow" else "eager"


def runner(model: Any, way: str) -> Run:
    """Return a function that runs a model in inference, in one of the ways."""
    call = partial(model, training=False)
    if way == "eager":
        return call
    if keras.backend.backend() == "tensorflow":
        compiled: Run = sys.modules["tensorflow"].function(
            call, jit_compile=way == "XLA", autograph=False
        )
        return compiled
    jitted = sys.modules["jax"].jit(partial(model.stateless_call, training=False))
    return partial(_run_jax, model, jitted)


def _run_jax(model: Any, call: Callable[..., Any], inputs: Any) -> Any:
    held = [
        [v.value for v in x] for x in (model.trainable_variables, model.non_trainable_variables)
    ]
    return call(*held, inputs)[0]


def _unusual_layers(model: Any) -> Iterator[Any]:
    """Yield the Keras layers that compute in ``channels_first``."""
    for layer in model._flatten_layers():
        module = unshadowed(type(layer)).__module__
        is_known = module.startswith(("keras.src.layers.convolutional", "keras.src.layers.pooling"))
        if is_known and getattr(layer, "data_format", "") == "channels_first" and layer.built:
            yield layer


def fault_of(layer: Any, way: str) -> str | None:
    """Return the error of the kernel that a layer uses, or None if it is correct."""
    config, parameters = layer.get_config(), _accepted(unshadowed(type(layer)))
    sizes = {key: config[key] for key in _SIZES if key in config and key in parameters}
    sizes["dtype"] = str(layer.compute_dtype)
    frozen = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(sizes.items()))
    shape = _shape_of(layer)
    fault = _probe(unshadowed(type(layer)), frozen, shape, way)
    if fault is None or not fault.startswith(_WRONG) or keras.backend.backend() != "tensorflow":
        return fault
    output = layer.compute_output_shape(shape)
    is_confused = getattr(layer, "use_bias", False) and output[1] == output[-1]
    return f"{fault}: Keras adds its bias along the last axis" if is_confused else fault


def _shape_of(layer: Any) -> tuple[int | None, ...]:
    """Return the shape that a layer was built for; pooling layers accept any."""
    built = (layer.get_build_config() or {}).get("input_shape")
    if built is not None:
        return tuple(built)
    nodes = layer._inbound_nodes
    if nodes:
        return tuple(nodes[0].input_tensors[0].shape)
    return (None, 2, *[None] * (layer.input_spec.ndim - 2))


@cache
def _accepted(cls: Any) -> frozenset[str]:
    code = cls.__init__.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return frozenset({*names, "dtype"})


@cache
def _probe(cls: Any, sizes: Any, shape: tuple[int | None, ...], way: str) -> str | None:
    """Compare a layer in ``channels_first`` with the same one in ``channels_last``."""
    options = dict(sizes)
    rng = np.random.default_rng(0)
    dims = (2, *(n or _extent(options) for n in shape[1:]))
    x = rng.standard_normal(dims).astype("float32")
    y = np.moveaxis(x, 1, -1)
    plain = {**options, "groups": 1} if "groups" in options else options
    first = _model_of(cls(**options, data_format="channels_first"), x)
    last = _model_of(cls(**plain, data_format="channels_last"), y)
    weights = [rng.standard_normal(v.shape).astype("float32") for v in first.weights]
    first.set_weights(weights)
    last.set_weights([_ungrouped(w, options.get("groups", 1)) for w in weights])
    try:
        received = to_array(runner(first, way)(x))
    except Exception as refusal:  # each backend raises its own errors
        return f"does not run ({type(refusal).__name__})"
    expected = to_array(runner(last, "eager")(y))
    if expected.ndim == x.ndim:
        expected = np.moveaxis(expected, -1, 1)
    tolerance = _ROUNDING[str(received.dtype)]
    received, expected = received.astype("float64"), expected.astype("float64")
    error = float(np.abs(received - expected).max() / np.abs(expected).max())
    return None if error <= tolerance else f"{_WRONG} {error:.1e} of its largest output"


def _model_of(layer: Any, x: Array) -> Any:
    return keras.Sequential([keras.Input(batch_shape=x.shape, dtype=layer.compute_dtype), layer])


def _extent(options: dict[str, Any]) -> int:
    """Return a size for a dimension of unknown size: twice what a kernel covers."""
    most = 1
    for key in ("kernel_size", "pool_size", "strides", "dilation_rate"):
        most *= max(options.get(key) or (1,))
    return 2 * most


def _ungrouped(weight: Array, groups: int) -> Array:
    """Return a grouped kernel as one over all channels, with zeros between groups."""
    if groups == 1 or weight.ndim == 1:
        return weight
    *window, inner, outer = weight.shape
    whole = np.zeros((*window, inner * groups, outer), weight.dtype)
    for i, columns in enumerate(np.split(np.arange(outer), groups)):
        whole[..., i * inner : (i + 1) * inner, columns] = weight[..., columns]
    return whole
