"""Describe a compressor in one line for the prompt, and as a table for a notebook."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lilliput.ops.namespace import namespace
from lilliput.printing import printable, shown

_GOALS = ("sparsity", "final_sparsity", "total_sparsity", "max_macs", "max_params", "granularity")
_FEW = 4


def describe(compressor: Any) -> str:
    """Return a compressor in one line: class, layers by type, their settings, stage."""
    wrappers = compressor.get_modules_wrapper()
    parts = [_count_types(wrappers)] if wrappers else []
    asked = list(dict.fromkeys(filter(None, map(asks, wrappers))))
    parts += ["; ".join(asked[:_FEW]) + ("; …" if len(asked) > _FEW else "")] if asked else []
    return f"{type(compressor).__name__}({'; '.join([*parts, stage(compressor)])})"


def describe_as_html(compressor: Any) -> str:
    """Return a table with a row per layer."""
    from lilliput.tables import html_table

    wrappers = compressor.get_modules_wrapper()
    rows = [
        (w.name, w.type, "×".join(map(str, w.layer_info.shape)) or "-", asks(w), _zeros(w))
        for w in wrappers
    ]
    masked = any(row[-1] for row in rows)
    header = ("layer", "type", "weight", "asks for", "zeros")
    return html_table(
        (row if masked else row[:-1] for row in rows),
        header if masked else header[:-1],
        title=f"{type(compressor).__name__}, {stage(compressor)}",
        notes=[_count_types(wrappers)] if wrappers else (),
    )


def stage(compressor: Any) -> str:
    """Return the stage of a compressor in a word or two."""
    if compressor.is_wrapped:
        return "compressed"
    if compressor.bound_model is None:
        return "no model yet"
    return "stripped" if compressor._has_compressed else "not compressed yet"


def asks(wrapper: Any) -> str:
    """Return the settings of a layer's rule: ``sparsity 0.5``, or ``8-bit weight, input``."""
    config = wrapper.config
    bits = config.get("quant_bits")
    if bits is None:
        return ", ".join(f"{key} {shown(config[key], 30)}" for key in _GOALS if key in config)
    by_role = bits if isinstance(bits, dict) else dict.fromkeys(wrapper.roles, bits)
    roles: dict[Any, list[str]] = {}
    for role in wrapper.roles:
        roles.setdefault(by_role.get(role), []).append(role)
    return "; ".join(f"{number}-bit {', '.join(names)}" for number, names in roles.items())


def _count_types(wrappers: list[Any]) -> str:
    counts = Counter(wrapper.type for wrapper in wrappers).most_common()
    more = ", …" if len(counts) > _FEW else ""
    listed = ", ".join(f"{printable(name)} ×{count}" for name, count in counts[:_FEW])
    return f"{len(wrappers)} layer{'s' if len(wrappers) > 1 else ''}: {listed}{more}"


def _zeros(wrapper: Any) -> str:
    """Return the share of a layer that its mask removes."""
    mask = getattr(wrapper, "weight_mask", None)
    if mask is None:
        return ""
    xp = namespace(mask)
    return f"{1 - int(xp.count_nonzero(mask)) / max(xp.size(mask), 1):.1%}"
