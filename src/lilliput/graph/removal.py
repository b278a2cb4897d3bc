"""From cuts back to classes: the labels that a plan removes in a new analysis of the same model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lilliput.errors import StateError
from lilliput.graph.analysis import Analysis
from lilliput.graph.cuts import Cut
from lilliput.graph.labels import Flags


def removal_of(analysis: Analysis, cuts: Iterable[Cut]) -> Flags:
    """Return the classes that no cut keeps anywhere."""
    walk, count = analysis.walk, analysis.walk.labels.count
    removed: Flags = np.zeros(count, bool)
    kept: Flags = np.zeros(count, bool)
    by_place = {(cut.tensor, cut.dim): cut.keep for cut in cuts}
    for name, value in analysis.axes.items():
        for dim, size in enumerate(value.shape):
            keep = by_place.get((name, dim))
            for column in walk.axes.tidy(value.axes[dim]):
                if keep is not None and keep.ndim == 1 and keep.max(initial=0) >= size:
                    raise StateError(f"{name}: the plan is for a larger tensor than {value.shape}.")
                roots = walk.labels.find(column.labels)
                if keep is None and not (name in walk.ragged and walk.ragged[name].dim == dim):
                    kept[roots] = True
                elif keep is not None and keep.ndim == 1:
                    kept[roots[keep]] = True
                    removed[roots] = True
    return removed & ~kept
