"""What each Keras layer and operation does to labels: one small function per family."""

from __future__ import annotations

from typing import Any

from lilliput.backends.keras.instrument import unshadowed
from lilliput.speedup.keras.rules import convolve, elementwise, layers, reduce, reshape, window
from lilliput.speedup.keras.rules.table import RULES
from lilliput.speedup.keras.walk import Rule

__all__ = ["RULES", "find_rule"]

_FAMILIES = (convolve, elementwise, layers, reduce, reshape, window)


def find_rule(operation: Any) -> Rule | None:
    """Return the rule of a layer or operation; None for one whose code is not Keras's own."""
    own: Any = unshadowed(type(operation))
    for base in own.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            is_plain = own.call is base.call and getattr(own, "build", 0) is getattr(
                base, "build", 0
            )
            return RULES.get(_key(base)) if is_plain and not _is_altered(operation) else None
    return None


def _key(cls: Any) -> str:
    """Return the name that a class has in the table: operations of ``keras.ops`` begin with ``ops.``."""
    is_layer = cls.__module__.startswith("keras.src.layers")
    return cls.__name__ if is_layer else f"ops.{cls.__name__}"


def _is_altered(layer: Any) -> bool:
    """Whether a layer holds its weights in another form than its class does at first."""
    quantized = getattr(layer, "quantization_mode", None) is not None
    return quantized or bool(getattr(layer, "lora_enabled", False))
