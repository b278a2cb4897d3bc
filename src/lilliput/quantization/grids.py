"""From the keys of a rule to integer grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.ops.qparams import Grid
from lilliput.quantization.bits import bits_of

# What a rule means where it does not say: as CPU runtimes execute it fastest.
_DEFAULTS = {
    "weight": {"quant_dtype": "int", "quant_scheme": "symmetric", "granularity": "per_channel"},
    "input": {"quant_dtype": "uint", "quant_scheme": "affine", "granularity": "per_tensor"},
    "output": {"quant_dtype": "uint", "quant_scheme": "affine", "granularity": "per_tensor"},
}


def setting_of(config: Mapping[str, Any], key: str, target: str) -> Any:
    """Return what a rule says of a target, or the default.

    Examples
    --------
    >>> setting_of({"quant_scheme": {"weight": "affine"}}, "quant_scheme", "weight")
    'affine'
    """
    value = config.get(key)
    value = value.get(target) if isinstance(value, Mapping) else value
    return _DEFAULTS[target].get(key) if value is None else value


def grid_for(config: Mapping[str, Any], target: str, layer: LayerInfo | None = None) -> Grid:
    """Return the grid that a rule gives to a layer's ``weight``, ``input`` or ``output``.

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
    if target == "weight" and granularity == "per_channel":
        axis = layer.out_axis if layer else 0
    elif target == "weight" and granularity == "per_group":
        axis = layer.in_axis if layer else 1
        group_size = config.get("group_size")
    bits = bits_of(config, target)
    return Grid(bits, is_signed, is_symmetric, bool(narrow), axis, group_size)
