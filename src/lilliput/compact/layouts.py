"""How a tensor is laid out as a matrix, and with which settings its rows are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from lilliput.compact.ans import Meter
from lilliput.compact.rows import STRENGTHS, Settings, code_matrix, find_stride
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
        Whether its columns are the last axis, and not all but the first.
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


def choose_layout(form: Form, codes: Array, bits: Array, has_mask: bool) -> Layout:
    """Return how the codes are read in the fewest bits, as far as a part of them shows."""
    masked = np.where(bits == 0, -1, codes) if has_mask else codes
    if form.name in ("raw", "float") and not has_mask:
        return Layout(View(), Settings(), has_mask)

    def part(view: View) -> Array:
        matrix = view.matrix(masked)
        rows, columns = _PART if masked.size > _WHOLE else matrix.shape
        return np.ascontiguousarray(matrix[:rows, :columns])

    def cost(view: View, settings: Settings) -> float:
        matrix, meter = part(view), Meter()
        count = int(np.count_nonzero(matrix >= 0)) if has_mask else None
        code_matrix(meter, settings, matrix.shape, form.signs, count, matrix)
        return meter.cost / max(int(matrix.size), 1)

    best = (float("inf"), View(), Settings())
    for view in _views(bits.shape):
        stride = find_stride(part(view) >= 0) if has_mask else 0
        settings = Settings(stride=stride)
        best = min(best, (cost(view, settings), view, settings), key=lambda one: one[0])
    changes: list[dict[str, Any]] = [{"has_signs": True}] if (form.signs < 0).any() else []
    if has_mask:
        changes += [{"stride": 0}, {"has_rows": True}]
        changes += [{"strength": i} for i in range(len(STRENGTHS))]
    for change in changes:
        settings = replace(best[2], **change)
        if settings != best[2]:
            trial = (cost(best[1], settings), best[1], settings)
            best = min(best, trial, key=lambda one: one[0])
    return Layout(best[1], best[2], has_mask)


def _views(shape: tuple[int, ...]) -> list[View]:
    if len(shape) < 2:
        return [View()]
    cuts = [False] if len(shape) == 2 else [False, True]
    found = [View(last, turned) for last in cuts for turned in (False, True)]
    # Very short rows cost time and know too little of each other.
    return [view for view in found if view.shape(shape)[1] >= 8] or [View()]
