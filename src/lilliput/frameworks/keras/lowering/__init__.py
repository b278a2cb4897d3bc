"""Keras layers as neutral ops: one small function per kind of layer, found by its class."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.lowering import convolve, dense, elementwise, norms, recurrent, shape
from lilliput.frameworks.keras.lowering.table import LOWERINGS, Lowering
from lilliput.frameworks.keras.shadow import unshadowed

__all__ = ["LOWERINGS", "find_lowering"]

_FAMILIES = (convolve, dense, elementwise, norms, recurrent, shape)


def find_lowering(operation: Any) -> Lowering | None:
    """Return the function that translates a layer or operation; None if its code is not that of Keras."""
    own: Any = unshadowed(type(operation))
    for base in own.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            is_plain = own.call is base.call and getattr(own, "build", 0) is getattr(
                base, "build", 0
            )
            return LOWERINGS.get(_key(base)) if is_plain and not _is_altered(operation) else None
    return None


def _key(cls: Any) -> str:
    """Return the key of a class in the table: operations of ``keras.ops`` start with ``ops.``."""
    is_layer = cls.__module__.startswith("keras.src.layers")
    return cls.__name__ if is_layer else f"ops.{cls.__name__}"


def _is_altered(layer: Any) -> bool:
    """Whether a layer stores its weights in another form than its class initially does."""
    quantized = getattr(layer, "quantization_mode", None) is not None
    return quantized or bool(getattr(layer, "lora_enabled", False))
