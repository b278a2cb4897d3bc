"""Reading the quantization keys of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def bits_of(config: Mapping[str, Any], target: str) -> int:
    """Return how many bits a rule gives to a layer's ``weight``, ``input`` or ``output``.

    Examples
    --------
    >>> bits_of({"quant_bits": {"weight": 4, "output": 8}}, "weight"), bits_of({"quant_bits": 6}, "input")
    (4, 6)
    """
    bits = config.get("quant_bits", 8)
    return int(bits.get(target, 8) if isinstance(bits, Mapping) else bits)
