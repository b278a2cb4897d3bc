"""The configs of layers with fewer channels: the few numbers that stand in them."""

from __future__ import annotations

from typing import Any

from lilliput.backends.keras.instrument import unshadowed
from lilliput.errors import UnsupportedModelError
from lilliput.graph.labels import Flags
from lilliput.speedup.keras.analysis import Analysis
from lilliput.speedup.keras.rules.convolve import channel_dim
from lilliput.speedup.keras.tensors import variables_of

# Which key of the config counts which dimension of which variable.
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
    """Return the config of a layer or operation as it is without the removed classes."""
    kinds = [cls.__name__ for cls in unshadowed(type(operation)).__mro__]
    if kinds[0] == "Reshape":
        return {**config, **_target(analysis, removed, operation, config)}
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
    """Return the sizes of the variables of a layer by attribute, nothing if none loses anything."""
    found, is_cut = {}, False
    for attribute, variable in variables_of(operation):
        name = analysis.tensors.names.get(id(variable), "")
        if name in analysis.axes:
            found[attribute] = analysis.sizes(analysis.axes[name], removed)
            is_cut |= found[attribute] != list(variable.shape)
    return found if is_cut else {}


def _size(layer: Any, config: dict[str, Any], key: str, size: int) -> dict[str, int]:
    if key not in config:
        raise UnsupportedModelError(
            f"layer {layer.name!r}: get_config() of {type(layer).__name__} has no {key!r}, so it cannot "
            "be made with fewer channels; expected the keys of the class it derives from."
        )
    return {key: size}


def _groups(analysis: Analysis, removed: Flags, layer: Any, kernel: list[int]) -> dict[str, int]:
    """Return the number of groups of a convolution: a depthwise one has as many as channels."""
    if getattr(layer, "groups", 1) == 1:
        return {}
    node = next(x for x in analysis.graph.nodes if x.operation is layer)
    sizes = analysis.sizes(analysis.walk.values[node.inputs[0]], removed)
    return {"groups": sizes[channel_dim(node, len(sizes))] // kernel[-2]}


def _target(
    analysis: Analysis, removed: Flags, operation: Any, config: dict[str, Any]
) -> dict[str, Any]:
    """Return the shape that a reshape leads to: -1 stays, sizes become smaller."""
    key = "target_shape" if "target_shape" in config else "newshape"
    node = next((x for x in analysis.graph.nodes if x.operation is operation), None)
    if node is None or key not in config:
        return {}
    value = analysis.walk.values[node.outputs[0]]
    sizes = analysis.sizes(value, removed)
    written = list(config[key]) if isinstance(config[key], (list, tuple)) else [config[key]]
    sizes = sizes[len(sizes) - len(written) :]
    known = list(value.shape)[len(value.shape) - len(written) :]
    target = [
        n if n == -1 or was is None else size
        for n, was, size in zip(written, known, sizes, strict=True)
    ]
    return {key: tuple(target)}


def _without_tables(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config whose initializers are not tables of the old size."""
    return {
        key: _plain(value) if key.endswith("_initializer") else value
        for key, value in config.items()
    }


def _plain(initializer: Any) -> Any:
    held = initializer.get("config", {}) if isinstance(initializer, dict) else {}
    is_table = initializer and isinstance(held.get("value"), (dict, list))
    return "zeros" if is_table else initializer
