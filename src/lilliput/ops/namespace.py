"""The small tensor vocabulary on which all numerics are written, chosen by the tensor at hand.

Each backend has an ``ops`` module with the same names; :func:`namespace` returns the one that fits::

    xp = namespace(weight)
    score = xp.abs(weight)
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

Tensor = Any

NAMES = (
    "abs",
    "any",
    "concat",
    "count_nonzero",
    "detach",
    "fake_quantize",
    "first_true",
    "flatten",
    "isnan",
    "kth_smallest",
    "max",
    "mean",
    "ones_like",
    "reshape",
    "round",
    "shape",
    "sign",
    "size",
    "straight_through",
    "tanh",
    "to_float",
    "where",
    "widen",
    "zeros_like",
)


def namespace(tensor: Tensor) -> Any:
    """Return the backend's ``ops`` module for this tensor."""
    # Plain enough for torch.compile to trace: quantizers call this in forward.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return sys.modules.get("lilliput.backends.torch.ops") or _torch_ops()
    raise TypeError(f"expected a tensor of a supported framework, received {type(tensor)!r}.")


def _torch_ops() -> Any:
    return import_module("lilliput.backends.torch.ops")
