"""Configs of layers with fewer channels: the few numbers in them that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.tensors import variables_of
from lilliput.graph.analysis import Analysis, Kept
from lilliput.graph.labels import Flags

# Which key of the config is the size of which dimension of which variable.
_SIZES = {
    "Dense": ("units", "kernel", -1),
    "Conv1D": ("filters", "kernel", -1),
    "Conv2D": ("filters", "kernel", -1),
    "Conv3D": ("filters", "kernel", -1),
    "Conv1DTranspose": ("filters", "kernel", -2),
    "Conv2DTranspose": ("filters", "kernel", -2),
    "Conv3DTranspose": ("filters", "kernel", -2),
    "SeparableConv1D": ("filters", "pointwise_kernel", -1),
    "SeparableConv2D": ("filters", "pointwise_kernel", -1),
    "Embedding": ("output_dim", "embeddings", -1),
}


def edited_config(
    analysis: Analysis, removed: Flags, operation: Any, config: dict[str, Any]
) -> dict[str, Any]:
    """Return the config of a layer or operation without the removed classes."""
    kinds = [cls.__name__ for cls in unshadowed(type(operation)).__mro__]
    if kinds[0] == "Reshape":
        return {**config, **_target(analysis, removed, operation, config)}
    special = next((_SPECIAL[kind] for kind in kinds if kind in _SPECIAL), None)
    if special is not None:
        return special(_Sizes(analysis, removed), operation, dict(config))
    sizes = _smaller_sizes(analysis, removed, operation)
    if not sizes:
        return config
    config = _without_tables(config)
    known = next((kind for kind in kinds if kind in _SIZES), None)
    if known is not None:
        key, attribute, dim = _SIZES[known]
        config |= _size(operation, config, key, sizes[attribute][dim])
        config |= _groups(analysis, removed, operation, sizes[attribute])
    return config


def _smaller_sizes(analysis: Analysis, removed: Flags, operation: Any) -> dict[str, list[int]]:
    """Return the sizes of a layer's variables by attribute; empty if none of them shrinks."""
    found, is_cut = {}, False
    for attribute, variable in variables_of(operation):
        name = analysis.graph.source.tensors.names.get(id(variable), "")
        if name in analysis.axes:
            found[attribute] = Kept(analysis, removed).parameter(name)
            is_cut |= found[attribute] != list(variable.shape)
    return found if is_cut else {}


class _Sizes:
    """The sizes of variables and results without the removed classes."""

    def __init__(self, analysis: Analysis, removed: Flags) -> None:
        self.kept, self.analysis = Kept(analysis, removed), analysis
        self.read = analysis.graph.source

    def of(self, layer: Any, attribute: str) -> list[int]:
        """Return the shape of a variable of a layer."""
        name, shape = self.read.tensors.find(layer, attribute)
        return self.kept.parameter(name) if name in self.analysis.axes else list(shape)

    def results(self, layer: Any) -> list[int]:
        """Return the shape of a layer's output, with 1 for unknown sizes."""
        node = next(x for x in self.read.calls.nodes if x.operation is layer)
        return self.kept.shape(self.analysis.walk.value(self.read.values[node.outputs[0]]))


def _recurrent(sizes: _Sizes, layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **_size(layer, config, "units", sizes.of(layer.cell, "recurrent_kernel")[0])}


def _both_directions(sizes: _Sizes, layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    inner = {"layer": layer.forward_layer, "backward_layer": layer.backward_layer}
    for key, each in inner.items():
        if hasattr(each.cell, "units"):
            held = {name: x for name, x in config[key].items() if name != "build_config"}
            config[key] = {**held, "config": _recurrent(sizes, each, held["config"])}
    return config


def _attention(sizes: _Sizes, layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Set the number of heads, and the width of the output if it differs from that of the query."""
    width, heads, _ = sizes.of(layer._query_dense, "kernel")[:3]
    made = tuple(sizes.of(layer._output_dense, "kernel")[2:])
    is_own = config["output_shape"] is not None or made != (width,)
    return {**config, "num_heads": heads, "output_shape": made if is_own else None}


def _einsum(sizes: _Sizes, layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    written = config["output_shape"]
    written = [written] if isinstance(written, int) else list(written)
    made = sizes.results(layer)[-len(written) :]
    shape = tuple(None if n is None else m for n, m in zip(written, made, strict=True))
    return {**config, "output_shape": shape}


def _norm_groups(sizes: _Sizes, layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Set the number of groups of a norm with one group per channel."""
    node = next(x for x in sizes.read.calls.nodes if x.operation is layer)
    channels = sizes.read.calls.shapes[node.inputs[0]][layer.axis]
    is_single = layer.groups == channels
    return {**config, "groups": sizes.results(layer)[layer.axis]} if is_single else config


_SPECIAL: dict[str, Callable[[_Sizes, Any, dict[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _recurrent),
    "Bidirectional": _both_directions,
    "MultiHeadAttention": _attention,
    "EinsumDense": _einsum,
    "GroupNormalization": _norm_groups,
}


def _size(layer: Any, config: dict[str, Any], key: str, size: int) -> dict[str, int]:
    if key not in config:
        raise UnsupportedModelError(
            f"layer {layer.name!r}: get_config() of {type(layer).__name__} has no {key!r}, so it cannot "
            "be created with fewer channels; expected the keys of the class it derives from."
        )
    return {key: size}


def _groups(analysis: Analysis, removed: Flags, layer: Any, kernel: list[int]) -> dict[str, int]:
    """Return the number of groups of a convolution: a depthwise one has as many as channels."""
    if getattr(layer, "groups", 1) == 1:
        return {}
    read = analysis.graph.source
    node = next(x for x in read.calls.nodes if x.operation is layer)
    sizes = Kept(analysis, removed).shape(analysis.walk.value(read.values[node.inputs[0]]))
    channels = sizes[1 if layer.data_format == "channels_first" else -1]
    return {"groups": channels // kernel[-2]}


def _target(
    analysis: Analysis, removed: Flags, operation: Any, config: dict[str, Any]
) -> dict[str, Any]:
    """Return the target shape of a reshape: -1 is kept, sizes shrink."""
    key = "target_shape" if "target_shape" in config else "newshape"
    read = analysis.graph.source
    node = next((x for x in read.calls.nodes if x.operation is operation), None)
    if node is None or key not in config:
        return {}
    shape = read.calls.shapes[node.outputs[0]]
    sizes = Kept(analysis, removed).shape(analysis.walk.value(read.values[node.outputs[0]]))
    written = list(config[key]) if isinstance(config[key], (list, tuple)) else [config[key]]
    sizes = sizes[len(sizes) - len(written) :]
    known = list(shape)[len(shape) - len(written) :]
    target = [
        n if n == -1 or was is None else size
        for n, was, size in zip(written, known, sizes, strict=True)
    ]
    return {key: tuple(target)}


def _without_tables(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without initializers that contain tables of the old size."""
    return {
        key: _plain(value) if key.endswith("_initializer") else value
        for key, value in config.items()
    }


def _plain(initializer: Any) -> Any:
    held = initializer.get("config", {}) if isinstance(initializer, dict) else {}
    is_table = initializer and isinstance(held.get("value"), (dict, list))
    return "zeros" if is_table else initializer
