"""Compute integer grids from the keys of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.ops.qparams import Grid

TABLES = frozenset({"Embedding", "EmbeddingBag"})

# Defaults of a rule: the settings that CPU runtimes execute fastest.
_DEFAULTS = {
    "weight": {"quant_dtype": "int", "quant_scheme": "symmetric", "granularity": "per_channel"},
    "input": {"quant_dtype": "uint", "quant_scheme": "affine", "granularity": "per_tensor"},
    "output": {"quant_dtype": "uint", "quant_scheme": "affine", "granularity": "per_tensor"},
}

_GROUP = {"quant_dtype": "uint", "quant_scheme": "affine"}  # of weights per group


def bits_of(config: Mapping[str, Any], target: str) -> int:
    """Return the bits of a layer's ``weight``, ``input`` or ``output`` in a rule.

    Examples
    --------
    >>> bits_of({"quant_bits": {"weight": 4, "output": 8}}, "weight"), bits_of({"quant_bits": 6}, "input")
    (4, 6)
    """
    bits = config.get("quant_bits", 8)
    return int(bits.get(target, 8) if isinstance(bits, Mapping) else bits)


def setting_of(config: Mapping[str, Any], key: str, target: str) -> Any:
    """Return the setting of a rule for a target, or the default.

    A group of weights is seldom symmetric, and kernels for groups support zero points at no cost: the
    default for groups is ``affine``, in ``uint``.

    Examples
    --------
    >>> setting_of({"quant_scheme": {"weight": "affine"}}, "quant_scheme", "weight")
    'affine'
    >>> setting_of({"granularity": "per_group", "group_size": 32}, "quant_dtype", "weight")
    'uint'
    """
    value = config.get(key)
    value = value.get(target) if isinstance(value, Mapping) else value
    if value is not None:
        return value
    found = _DEFAULTS[target].get(key)
    if target == "weight" and key in _GROUP:
        is_group = setting_of(config, "granularity", target) == "per_group"
        is_free = key == "quant_scheme" or setting_of(config, "quant_scheme", target) == "affine"
        return _GROUP[key] if is_group and is_free else found
    return found


def _weight_axes(layer: LayerInfo | None) -> tuple[int, int]:
    """Return the axis of a weight with one scale per entry, and the axis that is divided into groups.

    Embeddings have one scale per row: each row that is looked up has its own, and for a head tied to the
    embedding the rows are its outputs.
    """
    if layer is None or layer.types & TABLES:
        return 0, 1
    return layer.out_axis, layer.in_axis


def grid_for(config: Mapping[str, Any], target: str, layer: LayerInfo | None = None) -> Grid:
    """Return the grid of a layer's ``weight``, ``input`` or ``output`` according to a rule.

    Examples
    --------
    >>> grid_for({"quant_bits": 8}, "input").dtype, grid_for({"quant_bits": 4}, "weight").dtype
    ('uint8', 'int4')
    """
    is_signed = setting_of(config, "quant_dtype", target) == "int"
    is_symmetric = setting_of(config, "quant_scheme", target) == "symmetric"
    narrow = setting_of(config, "narrow_range", target)
    if narrow is None:
        narrow = target == "weight" and is_signed and is_symmetric
    axis, group_size = None, None
    granularity = setting_of(config, "granularity", target)
    channels, inputs = _weight_axes(layer)
    if target == "weight" and granularity == "per_channel":
        axis = channels
    elif target == "weight" and granularity == "per_group":
        axis, group_size = inputs, config.get("group_size")
    bits = bits_of(config, target)
    observer = setting_of(config, "observer", target) if target != "weight" else None
    is_dynamic = isinstance(observer, str) and observer.lower() == "dynamic"
    return Grid(bits, is_signed, is_symmetric, bool(narrow), axis, group_size, is_dynamic)
