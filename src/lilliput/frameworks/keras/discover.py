"""Find the layers of a Keras model: one LayerInfo per weight, named by its path in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras

from lilliput.config.layer import LayerInfo, Owner
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.variables import bias_of, is_bias, own_variables

# The meaning of 'default': layers with most of the weights, never norm layers.
DEFAULT_TYPES = frozenset(
    {
        *("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        *("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
        *("Dense", "EinsumDense", "PReLU", "Embedding", "SimpleRNN", "LSTM", "GRU"),
        *("SimpleRNNCell", "LSTMCell", "GRUCell"),
    }
)

# The torch names of the same layers, so that one config list works for both frameworks.
_TORCH_NAMES = {
    "Dense": ("Linear",),
    "EinsumDense": ("Linear",),
    "Conv1D": ("Conv1d", "_ConvNd"),
    "Conv2D": ("Conv2d", "_ConvNd"),
    "Conv3D": ("Conv3d", "_ConvNd"),
    "DepthwiseConv1D": ("Conv1d", "_ConvNd"),
    "DepthwiseConv2D": ("Conv2d", "_ConvNd"),
    "Conv1DTranspose": ("ConvTranspose1d", "_ConvNd"),
    "Conv2DTranspose": ("ConvTranspose2d", "_ConvNd"),
    "Conv3DTranspose": ("ConvTranspose3d", "_ConvNd"),
    "BatchNormalization": ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    "LayerNormalization": ("LayerNorm",),
    "SimpleRNN": ("RNN", "RNNBase"),
    "LSTM": ("RNNBase",),
    "GRU": ("RNNBase",),
}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def discover(model: Any) -> list[LayerInfo]:
    """Return every layer that can be compressed, in the order of the model.

    A layer has its own weights, or has neither weights nor inner layers.
    """
    found: list[LayerInfo] = []
    by_weight: dict[int, int] = {}
    for paths, layer, parents in _places(model):
        weights = [(n, v) for n, v in own_variables(layer) if not is_bias(n) and _is_usable(v)]
        if not weights and not layer._layers and not isinstance(layer, keras.layers.InputLayer):
            weights = [("", None)]
        for name, variable in weights:
            owner = Owner(paths, layer, name or None, bias_of(layer, name) if name else None)
            if variable is not None and id(variable) in by_weight:
                index = by_weight[id(variable)]
                found[index] = replace(found[index], owners=(*found[index].owners, owner))
                continue
            if variable is not None:
                by_weight[id(variable)] = len(found)
            info = _describe(paths[0], layer, parents, owner, variable, len(weights) == 1)
            # The inputs and outputs of a layer with several weights belong to the first of them.
            is_first = name == weights[0][0]
            found.append(info if is_first else replace(info, is_bypassed=True))
    return found


def parts_of(model: Any) -> list[tuple[str, Any]]:
    """Return every layer of a model under all its paths, each followed by its variables."""
    found: list[tuple[str, Any]] = []
    for path, layer, _ in _walk(model, "", ()):
        found += [(path, layer), *own_variables(layer)]
    return found


def find_parameters(model: Any) -> dict[str, LayerInfo]:
    """Return every trained variable under all its full names, each as its own layer."""
    found: dict[int, LayerInfo] = {}
    for paths, layer, _ in _places(model):
        for name, variable in own_variables(layer):
            owner = Owner(paths, layer, name, None)
            if id(variable) in found:
                known = found[id(variable)]
                found[id(variable)] = replace(known, owners=(*known.owners, owner))
            elif _is_usable(variable):
                full, shape = f"{paths[0]}.{name}", tuple(variable.shape)
                kind = unshadowed(type(layer)).__name__
                found[id(variable)] = LayerInfo(full, kind, (owner,), shape, is_parameter=True)
    return {name: layer for layer in found.values() for name in layer.tensor_names}


def find_layers(model: Any) -> list[LayerInfo]:
    """Return the model itself and every layer inside, as entries with an output."""
    found = []
    for paths, layer, parents in [(("",), model, ()), *_places(model)]:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        kind, owner = unshadowed(type(layer)).__name__, Owner(paths, layer, None, None)
        is_cell = bool(parents) and isinstance(parents[-1], keras.layers.RNN)
        types = frozenset(_type_names(layer))
        found.append(LayerInfo(paths[0], kind, (owner,), (), types, is_cell))
    return found


def layers_by_path(model: Any) -> dict[str, Any]:
    """Return every layer inside a model under all its paths."""
    return {path: layer for paths, layer, _ in _places(model) for path in paths}


def _places(model: Any) -> Iterator[tuple[tuple[str, ...], Any, tuple[Any, ...]]]:
    """Yield each layer inside a model with all its paths, and the layers that contain its first path."""
    places: dict[int, tuple[list[str], Any, tuple[Any, ...]]] = {}
    for path, layer, parents in _walk(model, "", ()):
        if not layer.built and not isinstance(layer, keras.layers.InputLayer):
            raise UnsupportedModelError(
                f"layer {path!r} is not built, so it has no weights yet; call the model on a batch, or "
                "build it, before compressing."
            )
        places.setdefault(id(layer), ([], layer, parents))[0].append(path)
    for paths, layer, parents in places.values():
        yield tuple(paths), layer, parents


def _walk(
    parent: Any, prefix: str, parents: tuple[Any, ...]
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    names: dict[str, int] = {}
    for layer in _children(parent):
        count = names[layer.name] = names.get(layer.name, 0) + 1
        path = f"{prefix}{layer.name}" + (f":{count}" if count > 1 else "")
        yield path, layer, parents
        yield from _walk(layer, f"{path}/", (*parents, layer))


def _children(layer: Any) -> list[Any]:
    """Return the layers directly inside a layer, skipping pure containers."""
    inner = layer._functional if isinstance(layer, keras.Sequential) else None
    found = [x for x in layer._layers if x is not inner]
    return list({id(x): x for x in found}.values())


def cells_of(layer: Any) -> list[Any]:
    """Return the cells of a recurrent layer, including both directions and stacked cells."""
    if isinstance(layer, keras.layers.Bidirectional):
        return [*cells_of(layer.forward_layer), *cells_of(layer.backward_layer)]
    if not isinstance(layer, keras.layers.RNN):
        return []
    return list(getattr(layer.cell, "cells", [layer.cell]))


def _describe(
    path: str, layer: Any, parents: tuple[Any, ...], owner: Owner, variable: Any, is_only: bool
) -> LayerInfo:
    cell_of = parents[-1] if parents and isinstance(parents[-1], keras.layers.RNN) else None
    shown = layer if cell_of is None else cell_of
    place = path if cell_of is None else path.rpartition("/")[0]
    name = place if is_only else f"{place}.{owner.weight_name}"
    types = _type_names(layer) | _type_names(shown)
    if parents and isinstance(parents[-1], keras.layers.MultiHeadAttention):
        types |= {"MultiHeadAttention", "MultiheadAttention"}
    shape = () if variable is None else tuple(variable.shape)
    kind = unshadowed(type(shown)).__name__
    info = LayerInfo(name, kind, (owner,), shape, frozenset(types), cell_of is not None)
    return replace(info, **_axes(layer, owner.weight_name, len(shape)))


def _type_names(layer: Any) -> set[str]:
    names = {c.__name__ for c in unshadowed(type(layer)).__mro__}
    names -= {"Layer", "object", "Operation", "KerasSaveable", "TFLayer", "TorchLayer", "JaxLayer"}
    return names | {alias for name in names for alias in _TORCH_NAMES.get(name, ())}


def _axes(layer: Any, weight: str | None, dimensions: int) -> dict[str, Any]:
    """Return the channel axes of a layer; see LayerInfo."""
    if dimensions == 0:
        return {}
    axes: dict[str, Any] = {"out_axis": dimensions - 1, "in_axis": max(dimensions - 2, 0)}
    is_transposed = "Transpose" in type(layer).__name__
    is_depthwise = "Depthwise" in type(layer).__name__ or weight == "depthwise_kernel"
    if (is_transposed or is_depthwise) and dimensions > 2:
        axes = {"out_axis": dimensions - 2, "in_axis": dimensions - 1}
    if getattr(layer, "data_format", None) == "channels_first":
        axes["channel_axis"] = 1
    return axes


def _is_usable(variable: Any) -> bool:
    return str(variable.dtype) in _FLOATS and 0 not in variable.shape
