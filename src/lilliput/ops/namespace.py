"""The small set of tensor functions used by all numerics, chosen by the type of the tensor.

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
    "assign",
    "clip",
    "concat",
    "cond",
    "count_nonzero",
    "detach",
    "exp",
    "fake_quantize",
    "first_true",
    "flatten",
    "from_numpy",
    "gelu",
    "histogram",
    "is_certain",
    "isfinite",
    "isnan",
    "kth_smallest",
    "learned_fake_quantize",
    "log",
    "log_softmax",
    "map_gradient",
    "max",
    "max_over",
    "maximum",
    "mean",
    "mean_abs",
    "mean_over",
    "min_over",
    "moveaxis",
    "nearest_of",
    "offset_to_zero_point",
    "ones_like",
    "pad_last",
    "pairwise_distances",
    "positive",
    "products",
    "range_of",
    "relu",
    "relu6",
    "repeat",
    "reshape",
    "round",
    "round_to_grid",
    "sample_size",
    "shape",
    "sign",
    "size",
    "sqrt",
    "stack",
    "straight_through",
    "sum",
    "take_first",
    "tanh",
    "to_float",
    "to_numpy",
    "uniform_like",
    "where",
    "widen",
    "zeros_like",
)


def namespace(tensor: Tensor) -> Any:
    """Return the backend's ``ops`` module for this tensor."""
    # Simple enough for torch.compile to trace: quantizers call this in the forward pass.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return sys.modules.get("lilliput.frameworks.torch.ops") or _torch_ops()
    keras = sys.modules.get("keras")
    if keras is not None and (isinstance(tensor, keras.Variable) or keras.ops.is_tensor(tensor)):
        return import_module("lilliput.frameworks.keras.ops")
    raise TypeError(f"expected a tensor of a supported framework, received {type(tensor)!r}.")


def _torch_ops() -> Any:
    return import_module("lilliput.frameworks.torch.ops")
