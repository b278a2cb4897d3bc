"""Histograms before and after, converted to one axis and to a few bytes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lilliput.report.snapshot import Snapshot, WeightHistogram

Histograms = list[dict[str, Any]]
Array = np.ndarray[Any, Any]
_BINS, _FEW_BINS, _FEW = 64, 16, 400  # with few values, wider bins show more


def find_histograms(
    before: Snapshot | None, after: Snapshot | None, tensors: Sequence[Mapping[str, Any]]
) -> Histograms:
    """Return histograms of the weights of all layers and of quantized activations, before and after."""
    weights = _weights(before, after)
    known = {pair["layer"] for pair in weights}
    measured = [x for x in tensors if x["target"] != "weight" or x["layer"] not in known]
    found = [on_one_axis(**weight) for weight in weights]
    found += [on_one_axis(**_measured(row)) for row in measured if row.get("histogram")]
    order = {name: i for i, name in enumerate(dict.fromkeys(x["layer"] for x in found))}
    return sorted(found, key=lambda x: order[x["layer"]])


def _weights(before: Snapshot | None, after: Snapshot | None) -> Histograms:
    """Return both histograms of every matrix, without norms."""
    old = {x.name: x for x in before.layers} if before is not None else {}
    new = {x.name: x for x in after.layers} if after is not None else {}
    found = []
    for name in dict.fromkeys((*old, *new)):
        one, two = old.get(name), new.get(name)
        if max(len(x.shape) for x in (one, two) if x is not None) < 2:
            continue
        pair = {"before": one and one.histogram, "after": two and two.histogram}
        if any(pair.values()):
            zeros = {
                "zeros_before": None if one is None else one.zeros,
                "zeros": None if two is None else two.zeros,
            }
            found.append({"layer": name, "target": "weight", **pair, **zeros})
    return found


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return both histograms of a tensor whose quantization was measured."""
    held = row["histogram"]
    sides = {
        side: WeightHistogram(
            low=held["low"], high=held["high"], counts=[round(x) for x in held[side]]
        )
        for side in ("before", "after")
    }
    return {"layer": row["layer"], "target": row["target"], **sides}


def on_one_axis(
    before: WeightHistogram | None, after: WeightHistogram | None, **names: Any
) -> dict[str, Any]:
    """Return the fields of a :class:`HistogramPair`, from one histogram or from both."""
    sides = [x for x in (before, after) if x is not None]
    low, high = min(x.low for x in sides), max(x.high for x in sides)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    bins = _BINS if max(sum(x.counts) for x in sides) > _FEW else _FEW_BINS
    return {
        **names,
        "low": float(f"{low:.4g}"),
        "high": float(f"{high:.4g}"),
        "before": None if before is None else _shares(before, low, high, bins),
        "after": None if after is None else _shares(after, low, high, bins),
    }


def _shares(histogram: WeightHistogram, low: float, high: float, bins: int) -> list[int]:
    """Return the share of each bin of another axis, in tenths of percent.

    The values in a bin are assumed to be spread evenly over it.

    >>> _shares(WeightHistogram(low=0, high=1, counts=[1, 3]), 0, 2, 4)
    [250, 750, 0, 0]
    """
    counts: Array = np.asarray(histogram.counts, np.float64)
    edges = np.linspace(histogram.low, histogram.high, counts.size + 1)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    if histogram.high <= histogram.low:  # a single value
        places: Array = np.linspace(low, high, bins + 1)
        shares: Array = np.histogram([histogram.low], places)[0].astype(np.float64)
    else:
        shares = np.diff(np.interp(np.linspace(low, high, bins + 1), edges, below))
    total = shares.sum()
    return [int(x) for x in np.round(1000 * shares / total)] if total else [0] * bins
