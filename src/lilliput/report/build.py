"""Assemble all measurements into one report.

>>> import torch
>>> from lilliput.report.snapshot import snapshot
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> report = build_report(None, before=snapshot(model), title="Two layers")
>>> [row.name for row in report.layers]
['0', '2']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lilliput.errors import ConfigError
from lilliput.graph.groups import layer_of, roles_of
from lilliput.report.document import (
    ChannelGroup,
    Curve,
    HistogramPair,
    LayerRow,
    Report,
    TriedPoint,
    now,
)
from lilliput.report.environment import environment
from lilliput.report.pairs import Histograms, find_histograms
from lilliput.report.snapshot import LayerSnapshot, Snapshot

_FIGURES = ("bytes", "macs", "p50", "metric", "sparsity")


def build_report(
    receipt: Any = None,
    *,
    before: Snapshot | None = None,
    after: Snapshot | None = None,
    quantization: Any = None,
    sensitivity: Any = None,
    points: Sequence[Mapping[str, Any]] = (),
    groups: Any = None,
    export: Any = None,
    recipe: str = "",
    reproduce: str = "",
    title: str = "Compression report",
    notes: Sequence[str] = (),
) -> Report:
    """Return the report of a compression; every part is optional.

    Parameters
    ----------
    receipt : Receipt or dict, optional
        The whole model before → after.
    before, after : Snapshot, optional
        The layers of the original model, and of the result.
    quantization : QuantizationReport or dict, optional
        The effect of quantization on each tensor.
    sensitivity : SensitivityAnalysis or dict, optional
        A completed analysis, or ``{layer: {sparsity: metric}}``.
    points : list of dict
        Models that were tried: ``name``, and some of ``bytes``, ``macs``, ``p50``, ``metric``,
        ``sparsity``.
    groups : ChannelGroups, optional
        Which channels belong together.
    export : ExportResult or dict, optional
        The kernel that executes each layer.
    recipe : str
        The config or the recipe, as text.
    reproduce : str
        The commands that reproduce the result.
    title : str
        The heading.
    notes : list of str
        Other notes for the reader.
    """
    measured, executed = _plain(quantization), _plain(export)
    histograms = find_histograms(before, after, measured.get("tensors", ()))
    exported = [str(note) for note in executed.get("notes", ())]
    return Report(
        title=title,
        created=now(),
        receipt=None if receipt is None else _plain(receipt),
        layers=_layers(before, after, measured, executed),
        sensitivity=_curves(sensitivity),
        histograms=_pairs(histograms),
        points=[_point(point) for point in points],
        groups=[] if groups is None else _groups(groups),
        recipe=recipe,
        environment=environment(),
        reproduce=reproduce,
        notes=[*notes, *exported],
    )


def _plain(given: Any) -> dict[str, Any]:
    """Return one of our objects as plain data."""
    if given is None:
        return {}
    data = given if isinstance(given, Mapping) else given.to_dict()
    return dict(data)


def _layers(
    before: Snapshot | None,
    after: Snapshot | None,
    measured: Mapping[str, Any],
    executed: Mapping[str, Any],
) -> list[LayerRow]:
    """Return a row per layer, in the order of the original model."""
    old = {x.name: x for x in before.layers} if before is not None else {}
    new = {x.name: x for x in after.layers} if after is not None else {}
    if old and new and not old.keys() & new.keys():
        old = {}  # a captured graph has other names: there is nothing to compare
    ratios, bits = _ratios(measured)
    kernels = {x["name"]: x for x in (*measured.get("layers", ()), *executed.get("layers", ()))}
    rows = []
    for name in dict.fromkeys((*old, *new)):
        one, two = old.get(name), new.get(name) if after is not None else old.get(name)
        row = _sizes(one if after is not None else None, two)
        kernel = kernels.get(name, {})
        row["bits"] = (None if two is None else two.bits) or bits.get(name)
        rows.append(
            LayerRow(
                name=name,
                type=(two or one).type,  # type: ignore[union-attr]
                sqnr=ratios.get(name, {}),
                kernel=str(kernel.get("kernel", "")),
                **row,
            )
        )
    return rows


def _sizes(before: LayerSnapshot | None, after: LayerSnapshot | None) -> dict[str, Any]:
    """Return the sizes of a layer, with none after it was removed."""
    names = ("shape", "parameters", "macs", "ms")
    row = {f"{x}_before": None if before is None else getattr(before, x) for x in names}
    if after is None:
        return row | {"macs": 0 if before is not None and before.macs is not None else None}
    return row | {x: getattr(after, x) for x in (*names, "nonzeros")}


def _ratios(measured: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the signal-to-noise ratio of each layer's tensors, and the bits of its weight."""
    ratios: dict[str, dict[str, float]] = {}
    bits: dict[str, int] = {}
    for row in measured.get("tensors", ()):
        if row["target"] == "weight" and row["bits"] is not None:
            bits[row["layer"]] = row["bits"]
        if _number(row["sqnr"]) is not None:
            ratios.setdefault(row["layer"], {})[row["target"]] = round(row["sqnr"], 2)
    return ratios, bits


def _pairs(histograms: Histograms) -> list[HistogramPair]:
    return [HistogramPair(**pair) for pair in histograms]


def _curves(given: Any) -> list[Curve]:
    """Return curves from an analysis, from ``{layer: {sparsity: metric}}``, or unchanged if from JSON."""
    if given is None:
        return []
    baseline = _number(getattr(given, "ori_metric", None))
    curves = getattr(given, "sensitivities", given)
    if not isinstance(curves, Mapping):
        return [x if isinstance(x, Curve) else Curve.model_validate(x) for x in curves]
    return [
        Curve(layer=layer, baseline=baseline, points=_finite_points(curve.items()))
        for layer, curve in curves.items()
    ]


def _finite_points(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[float, float]]:
    points = ((float(sparsity), _number(metric)) for sparsity, metric in pairs)
    return sorted((x, y) for x, y in points if y is not None)


def _point(given: Mapping[str, Any]) -> TriedPoint:
    unknown = sorted(set(given) - {"name", *_FIGURES})
    if unknown or "name" not in given:
        raise ConfigError(
            f"points: received a point with {sorted(given)}, expected 'name' and some of "
            f"{', '.join(_FIGURES)}."
        )
    return TriedPoint(name=str(given["name"]), **{x: _number(given.get(x)) for x in _FIGURES})


def _groups(found: Any) -> list[ChannelGroup]:
    """Return channel groups by the layers that produce, read and pass on their channels."""
    groups = []
    for group in found:
        makes, reads, passes = roles_of(group, found)
        groups.append(
            ChannelGroup(
                name=group.name,
                size=group.size,
                rows=group.row_count,
                makes=makes,
                reads=reads,
                passes=passes,
            )
        )
    for pinned in found.pinned:
        layer = [layer_of(pinned.tensor)]
        groups.append(
            ChannelGroup(name=pinned.tensor, size=pinned.size, makes=layer, reason=pinned.reason)
        )
    return groups


def _number(value: Any) -> float | None:
    """Return a number to five digits, or None if it is not a finite number."""
    if value is None or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(f"{float(value):.5g}")
