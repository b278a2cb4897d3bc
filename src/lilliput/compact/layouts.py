"""How a tensor is laid out as a matrix, and the settings for reading its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from lilliput.compact.ans import Meter
from lilliput.compact.rows import STRENGTHS, Settings, classes_of, code_matrix, find_stride
from lilliput.compact.tensors import Form

Array = Any

_WHOLE = 1 << 19  # larger tensors are compared by a part of them
_PART = (1024, 512)


@dataclass(frozen=True)
class View:
    """How a tensor is laid out as a matrix.

    Parameters
    ----------
    by_last : bool
        Whether its columns are the last axis instead of all but the first.
    is_turned : bool
        Whether rows and columns are exchanged.
    """

    by_last: bool = False
    is_turned: bool = False

    def shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return rows and columns."""
        if len(shape) < 2:
            return 1, prod(shape)
        cut = len(shape) - 1 if self.by_last else 1
        rows, columns = prod(shape[:cut]), prod(shape[cut:])
        return (columns, rows) if self.is_turned else (rows, columns)

    def matrix(self, array: Array) -> Array:
        """Return the tensor as that matrix."""
        rows, columns = self.shape(array.shape)
        turned = self.is_turned and array.ndim > 1
        return array.reshape(columns, rows).T if turned else array.reshape(rows, columns)

    def tensor(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrix as the tensor."""
        turned = self.is_turned and len(shape) > 1
        return np.ascontiguousarray(matrix.T if turned else matrix).reshape(shape)


@dataclass(frozen=True)
class Layout:
    """How the codes of a tensor are read."""

    view: View
    settings: Settings
    has_mask: bool
    link: int = 0  # which hint of the previous layer is used


class Links:
    """The number of weights of each unit in the previous layer.

    A unit is a slice of the first axis that is read by one of the second (torch), or a slice of the last axis
    that is read by one of the second to last (Keras).
    """

    def __init__(self) -> None:
        self._counts: dict[int, Array] = {}

    def take(self, bits: Array) -> None:
        """Record a tensor, if it is a layer's weight."""
        if bits.ndim > 1 and bits.size:
            others = tuple(range(bits.ndim))
            self._counts = {
                1: np.count_nonzero(bits, axis=others[1:]),
                2: np.count_nonzero(bits, axis=others[:-1]),
            }

    def hint(self, link: int, shape: tuple[int, ...]) -> Array | None:
        """Return a class for each entry of the next tensor, or None if the sizes do not fit."""
        counts = self._counts.get(link)
        axis = 1 if link == 1 else len(shape) - 2
        if counts is None or len(shape) < 2 or shape[axis] != len(counts):
            return None
        place = [-1 if i == axis else 1 for i in range(len(shape))]
        return np.broadcast_to(classes_of(counts).astype(np.int8).reshape(place), shape)


def choose_layout(form: Form, codes: Array, bits: Array, has_mask: bool, links: Links) -> Layout:
    """Return the layout that reads the codes in the fewest bits, estimated from a part of them."""
    masked = np.where(bits == 0, -1, codes) if has_mask else codes
    if form.name in ("raw", "float") and not has_mask:
        return Layout(View(), Settings(), has_mask)

    def part(view: View, tensor: Array) -> Array:
        matrix = view.matrix(tensor)
        rows, columns = _PART if masked.size > _WHOLE else matrix.shape
        return np.ascontiguousarray(matrix[:rows, :columns])

    def cost(view: View, settings: Settings, hint: Array | None = None) -> float:
        matrix, meter = part(view, masked), Meter()
        hints = None if hint is None else part(view, hint)
        count = int(np.count_nonzero(matrix >= 0)) if has_mask else None
        code_matrix(meter, settings, matrix.shape, form.signs, count, matrix, hints)
        return meter.cost / max(int(matrix.size), 1)

    best = (float("inf"), View(), Settings())
    for view in _views(bits.shape):
        stride = find_stride(part(view, masked) >= 0) if has_mask else 0
        settings = Settings(stride=stride)
        best = min(best, (cost(view, settings), view, settings), key=lambda one: one[0])
    linked: tuple[int, Array | None] = (0, None)
    for link in (1, 2) if has_mask else ():
        hint = links.hint(link, bits.shape)
        trial = float("inf") if hint is None else cost(best[1], best[2], hint)
        if trial < best[0]:
            best, linked = (trial, best[1], best[2]), (link, hint)
    changes: list[dict[str, Any]] = [{"has_signs": True}] if (form.signs < 0).any() else []
    if has_mask:
        changes += [{"stride": 0}, {"has_rows": True}]
        changes += [{"strength": i} for i in range(len(STRENGTHS))]
    for change in changes:
        settings = replace(best[2], **change)
        if settings != best[2]:
            option = (cost(best[1], settings, linked[1]), best[1], settings)
            best = min(best, option, key=lambda one: one[0])
    return Layout(best[1], best[2], has_mask, linked[0])


def _views(shape: tuple[int, ...]) -> list[View]:
    if len(shape) < 2:
        return [View()]
    cuts = [False] if len(shape) == 2 else [False, True]
    found = [View(last, turned) for last in cuts for turned in (False, True)]
    # Very short rows are slow and predict each other poorly.
    return [view for view in found if view.shape(shape)[1] >= 8] or [View()]
