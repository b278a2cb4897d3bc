"""The small tensor vocabulary on which all numerics are written, chosen by the tensor at hand.

Each backend has an ``ops`` module with the same names; :func:`namespace` returns the one that fits::

    xp = namespace(weight)
    score = xp.abs(weight)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

Tensor = Any

NAMES = (
    "abs",
    "any",
    "clip",
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
    "min",
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
    "zeros_like",
)


def namespace(tensor: Tensor) -> Any:
    """Return the backend's ``ops`` module for this tensor."""
    package = type(tensor).__module__.partition(".")[0]
    if package == "torch":
        return import_module("lilliput.backends.torch.ops")
    raise TypeError(f"expected a tensor of a supported framework, received {type(tensor)!r}.")
