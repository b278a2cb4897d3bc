"""Compare the outputs of two models: every tensor of nested outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of tuples, lists, dicts and dataclasses, in order."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from tensors(value)
    elif dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        for field in dataclasses.fields(outputs):
            yield from tensors(getattr(outputs, field.name))


def shapes(outputs: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors(outputs)]


def deviation(reference: Any, outputs: Any) -> float:
    """Return the largest error, relative to the largest value of each reference tensor.

    Other shapes, missing tensors and non-finite values give infinity.
    """
    if shapes(reference) != shapes(outputs):
        return math.inf
    worst = 0.0
    for expected, received in zip(tensors(reference), tensors(outputs), strict=True):
        if not expected.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(expected, received) else math.inf)
            continue
        largest = expected.abs().max().double().item() if expected.numel() else 0.0
        error = (expected - received).abs().max().double().item() if expected.numel() else 0.0
        relative = error / largest if largest else error
        worst = max(worst, relative if math.isfinite(relative) else math.inf)
    return worst
