"""The rule for ops that have none: run them on labels, and see where each index goes.

An op that only moves entries gives back, wherever it is fed numbers, nothing but these numbers and
zeros. Fed with the index along one dimension, it shows where that dimension went.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lilliput.speedup.axes import FIXED, Axis
from lilliput.speedup.walk import Value, Walk

_LARGEST = 2_000_000  # elements


def by_execution(walk: Walk, a: SimpleNamespace) -> Any:
    """Return what running the op on labels shows, or give up."""
    sources = [x for x in vars(a).values() if isinstance(x, Value)]
    if (
        len(sources) != 1
        or not isinstance(a.shapes, tuple)
        or not a.shapes
        or max(_size(a.shapes), _size(sources[0].shape)) > _LARGEST
    ):
        return walk.give_up(walk.node)
    source = sources[0]
    try:
        if not _only_moves(walk, source.shape):
            return walk.give_up(walk.node)
        axes: list[Axis] = [FIXED] * len(a.shapes)
        for d, axis in enumerate(source.axes):
            if walk.axes.tidy(axis):
                _follow(walk, source, d, axes)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return walk.give_up(walk.node)
    return Value(a.shapes, tuple(axes))


def _only_moves(walk: Walk, shape: tuple[int, ...]) -> bool:
    """Whether the op gives back entries of its input and zeros, two different inputs alike."""
    size = _size(shape)
    first = torch.arange(1, size + 1, dtype=torch.float64)
    second = first.flip(0) * 3 + size
    out = _run(walk, first.reshape(shape)).round().long()
    if int(out.min()) < 0 or int(out.max()) > size:
        return False
    table = torch.cat([torch.zeros(1, dtype=torch.float64), second])
    return torch.equal(_run(walk, second.reshape(shape)), table[out])


def _follow(walk: Walk, source: Value, dim: int, axes: list[Axis]) -> None:
    """Enter the labels of one dimension where the op puts them, or pin them."""
    ramp = torch.arange(1, source.shape[dim] + 1, dtype=torch.float64)
    view = [-1 if d == dim else 1 for d in range(len(source.shape))]
    out = _run(walk, ramp.view(view).expand(source.shape).contiguous()).long()
    varies = [d for d in range(out.dim()) if bool((out != out.narrow(d, 0, 1)).any())]
    if len(varies) != 1:
        walk.pin(source.axes[dim])
        return
    where = out[tuple(slice(None) if d == varies[0] else 0 for d in range(out.dim()))].numpy()
    found = []
    for column in walk.axes.tidy(source.axes[dim]):
        labels = column.labels[(where - 1).clip(min=0)]
        labels[where == 0] = 0
        found.append(type(column)(labels, column.is_zero))
    axes[varies[0]] = (*axes[varies[0]], *found)


def _run(walk: Walk, tensor: Tensor) -> Tensor:
    arguments = [
        tensor if isinstance(walk.resolve(x), Value) else walk.resolve(x) for x in walk.node.args
    ]
    result = walk.node.target(*arguments, **walk.node.kwargs)  # type: ignore[operator]
    if not isinstance(result, Tensor) or result.is_complex():
        raise TypeError("not one tensor of real numbers")
    return result.double()


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
