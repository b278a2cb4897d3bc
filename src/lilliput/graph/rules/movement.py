"""The rule for ops without one: run them on indices, and see where each index goes.

An op that only moves entries returns, for any input, only entries of that input and zeros. Given
the index along one dimension as values, it shows where that dimension goes. The framework's
reader knows how to run an op; see :attr:`lilliput.graph.ir.Op.run`.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.ir import Array
from lilliput.graph.labels import Indices
from lilliput.graph.walk import Value, Walk

_LARGEST = 2_000_000  # elements


def by_execution(walk: Walk, a: SimpleNamespace) -> Any:
    """Return the axes found by running the op on indices, or give up."""
    sources = [x for x in vars(a).values() if isinstance(x, Value)]
    if (
        len(sources) != 1
        or not isinstance(a.shapes, tuple)
        or not a.shapes
        or max(prod(a.shapes), prod(sources[0].shape)) > _LARGEST
    ):
        return walk.give_up()
    source = sources[0]
    try:
        if not _only_moves(walk, source.shape):
            return walk.give_up()
        axes: list[Axis] = [FIXED] * len(a.shapes)
        for d, axis in enumerate(source.axes):
            if walk.axes.tidy(axis):
                _follow(walk, source, d, axes)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return walk.give_up()
    return Value(a.shapes, tuple(axes))


def _only_moves(walk: Walk, shape: tuple[int, ...]) -> bool:
    """Whether the op only returns entries of its input and zeros, in the same way for two inputs."""
    size = prod(shape)
    first = np.arange(1.0, size + 1)
    second = first[::-1] * 3 + size
    out = _indices(_run(walk, first.reshape(shape)))
    if out.min() < 0 or out.max() > size:
        return False
    table = np.concatenate([np.zeros(1), second])
    return np.array_equal(_run(walk, second.reshape(shape)), table[out])


def _follow(walk: Walk, source: Value, dim: int, axes: list[Axis]) -> None:
    """Put the labels of one dimension where the op moves them, or pin them."""
    ramp = np.arange(1.0, source.shape[dim] + 1)
    view = [-1 if d == dim else 1 for d in range(len(source.shape))]
    out = _indices(_run(walk, np.broadcast_to(ramp.reshape(view), source.shape).copy()))
    varies = [d for d in range(out.ndim) if bool((out != out.take([0], axis=d)).any())]
    if len(varies) != 1:
        walk.pin(source.axes[dim])
        return
    where = out[tuple(slice(None) if d == varies[0] else 0 for d in range(out.ndim))]
    found = []
    for column in walk.axes.tidy(source.axes[dim]):
        labels = column.labels[(where - 1).clip(min=0)]
        labels[where == 0] = 0
        found.append(type(column)(labels, column.is_zero))
    axes[varies[0]] = (*axes[varies[0]], *found)


def _run(walk: Walk, array: Array) -> Array:
    if walk.op.run is None:
        raise TypeError("it is not known how to run it")
    return walk.op.run(array)


def _indices(array: Array) -> Indices:
    """Return numbers as rounded integers; NaN and very large values become -1."""
    is_number = np.isfinite(array) & (np.abs(array) < 2**53)
    found: Indices = np.where(is_number, array, -1).round().astype(np.int64)
    return found
