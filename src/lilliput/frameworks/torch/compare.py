"""Compare the outputs of two models: every tensor of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lilliput.ops import closeness

_PLAIN = (torch.float64, torch.float32)


def tensors_of(output: Any) -> Iterator[Tensor]:
    """Yield every tensor of a model's output, however it is nested."""
    return (x for x in leaves_of(output) if isinstance(x, Tensor))


def leaves_of(output: Any) -> Iterator[Any]:
    """Yield the items of nested mappings, sequences and dataclasses."""
    if isinstance(output, Mapping):
        for value in output.values():
            yield from leaves_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from leaves_of(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from leaves_of(getattr(output, field.name))
    else:
        yield output


def relative_error(expected: list[Tensor], received: list[Tensor]) -> float:
    """Return the largest error of all tensors, relative to their sizes; inf if shapes differ."""
    if [x.shape for x in expected] != [x.shape for x in received]:
        return float("inf")
    worst = 0.0
    for a, b in zip(expected, received, strict=True):
        if not a.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
        else:
            worst = max(worst, closeness.relative_error(_to_array(a), _to_array(b)))
    return worst


def _to_array(tensor: Tensor) -> Any:
    """Return floating-point numbers of a type that NumPy has."""
    plain = tensor.detach().cpu()
    return (plain if plain.dtype in _PLAIN else plain.float()).numpy()
