"""Weights and multiplications of the layers of a Keras model, read and observed without changes.

Multiplications are counted from the shapes that each layer is called with, by the formula of its kind,
because Keras has no counter. Per-layer times are not measured, since a compiled model has no layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import keras
from keras import tree

from lilliput.frameworks.keras.discover import cells_of, layers_by_path
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.instrument import Collector
from lilliput.frameworks.keras.scopes import full_precision
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.sidecar import mask_of, sidecar_of
from lilliput.frameworks.keras.variables import raw, tensor_of, to_array
from lilliput.frameworks.keras.verify import answers, make_inputs
from lilliput.frameworks.work import Array, Work, batch_of
from lilliput.graph.macs import attention_macs, einsum_macs, recurrent_macs

Shape = tuple[int, ...]


def name_of(owner: Any) -> str:
    """Return the name of a layer; a cell has the name of its recurrent layer."""
    path: str = owner.path
    return path.rpartition("/")[0] if _is_cell(owner.module) and "/" in path else path


def type_of(owner: Any, kind: str) -> str:
    """Return the kind of a layer; a cell has that of its recurrent layer."""
    return kind.removesuffix("Cell") if name_of(owner) != owner.path else kind


def paths(model: Any) -> list[str]:
    """Return the names of all layers, in the model's order."""
    return list(layers_by_path(model))


def value(layer: Any, name: str) -> Array:
    """Return a variable as the layer uses it."""
    sidecar, variable = sidecar_of(layer), raw(layer, name)
    if sidecar is None or name not in sidecar.chains:
        array: Array = to_array(variable)
    else:
        with full_precision():
            array = to_array(sidecar.transform(name, tensor_of(variable)))
        mask = mask_of(layer, name)
        array = array if mask is None else array * (mask != 0)
    return array.astype("float32") if array.dtype.kind == "V" else array  # bfloat16


def quantizer_of(layer: Any, name: str) -> Any:
    """Return the wrapper of the quantizer of a variable, or None."""
    sidecar = sidecar_of(layer)
    chain = sidecar.chains.get(name, ()) if sidecar is not None else ()
    return next((wrapper for wrapper, role in chain if wrapper.order == 1), None)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Do nothing: each Keras call specifies whether it is training."""
    yield


def watch(model: Any, example_inputs: Any, timing: bool) -> tuple[int | None, dict[int, Work]]:
    """Run a model, and return the batch size and the work of each layer by its identity."""
    if example_inputs is None and function_of(model) is None:
        return None, {}
    inputs = make_inputs(model, example_inputs)[0]
    works: dict[int, Work] = {}
    by_path = layers_by_path(model)

    def note(found: Any, args: Any, output: Any) -> None:
        layer, path = found
        given = [tuple(x.shape) for x in tree.flatten(args) if hasattr(x, "shape")]
        made = [tuple(x.shape) for x in tree.flatten(output) if hasattr(x, "shape")]
        if given and made:
            holder = layer.cell if isinstance(layer, keras.layers.RNN) else layer
            kind = unshadowed(type(layer)).__name__
            work = works.setdefault(id(holder), Work(path, kind))
            work.macs += _macs(layer, kind, given, made[0])

    with ExitStack() as handles:
        for path, layer in {id(x): (path, x) for path, x in reversed(by_path.items())}.values():
            handles.callback(Collector((layer, path), note).add_to(layer).remove)
        answers(model, [inputs])
    return batch_of(tree.flatten(inputs)), works


def _macs(layer: Any, kind: str, given: list[Shape], made: Shape) -> int:
    """Return the multiplications of one call of a layer."""
    if isinstance(layer, keras.layers.RNN):
        sizes = (_size(cell, "kernel", "recurrent_kernel") for cell in cells_of(layer))
        return recurrent_macs(prod(given[0][:-1]), sizes)
    if kind == "EinsumDense":
        return einsum_macs(layer.equation, [given[0], tuple(raw(layer, "kernel").shape)])
    if kind == "MultiHeadAttention":
        return _attention(layer, given)
    if kind == "Dense":
        return prod(made[:-1]) * _size(layer, "kernel")
    if kind.endswith("Transpose"):
        return _positions(layer, given[0]) * _size(layer, "kernel")
    if "Conv" in kind:
        kernels = ("kernel", "depthwise_kernel", "pointwise_kernel")
        return _positions(layer, made) * _size(layer, *kernels)
    return 0


def _size(layer: Any, *names: str) -> int:
    found = {id(v): v for v in (raw(layer, name) for name in names) if v is not None}
    return sum(prod(v.shape) for v in found.values())


def _positions(layer: Any, shape: Shape) -> int:
    """Return the number of positions, over all examples, at which a kernel is applied."""
    channels = 1 if layer.data_format == "channels_first" else len(shape) - 1
    return prod(n for axis, n in enumerate(shape) if axis != channels)


def _attention(layer: Any, given: list[Shape]) -> int:
    """Return the multiplications of queries with keys and of weights with values."""
    query, keys = given[0], given[1] if len(given) > 1 else given[0]
    queries = prod(query[:-1]) * int(layer._num_heads)
    return attention_macs(queries, prod(keys[1:-1]), layer._key_dim, layer._value_dim)


def _is_cell(layer: Any) -> bool:
    return hasattr(layer, "state_size") and not isinstance(layer, keras.layers.RNN)
