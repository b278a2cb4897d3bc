"""Two reports as one: what the second result is, measured against the first.

>>> from lilliput.report.document import LayerRow
>>> one = Report(title="half", layers=[LayerRow(name="fc", parameters=50, nonzeros=50)])
>>> two = Report(title="quarter", layers=[LayerRow(name="fc", parameters=25, nonzeros=25)])
>>> row = compare_reports(one, two).layers[0]
>>> row.parameters_before, row.parameters, row.kept
(50, 25, 0.5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import unified_diff
from typing import Any

from lilliput.measure.receipt import Figures, Receipt
from lilliput.report.document import (
    HistogramPair,
    LayerRow,
    Report,
    TriedPoint,
    now,
    read_receipt,
)
from lilliput.report.pairs import on_one_axis
from lilliput.report.snapshot import WeightHistogram


def compare_reports(one: Report, two: Report) -> Report:
    """Return a report that says what the result of ``two`` is against the result of ``one``.

    What was *after* in the first is *before* in this one. Models tried in both are shown together, and
    the recipe is what differs between the two.

    Parameters
    ----------
    one, two : Report
        Such as :meth:`Report.load` returns.
    """
    return Report(
        title=f"{two.title}, against {one.title}",
        created=now(),
        receipt=_receipt(one, two),
        layers=_layers(one.layers, two.layers),
        histograms=_histograms(one.histograms, two.histograms),
        points=_points(one, two),
        groups=two.groups,
        recipe=_difference(one, two),
        environment=two.environment,
        reproduce=two.reproduce,
        notes=_notes(one, two),
    )


def _receipt(one: Report, two: Report) -> dict[str, Any] | None:
    if one.receipt is None or two.receipt is None:
        return None
    first, second = read_receipt(one.receipt), read_receipt(two.receipt)
    before, after = _apart(first.after, second.after, one.title, two.title)
    return Receipt(before, after, second.metric_name, notes=second.notes).to_dict()


def _apart(before: Figures, after: Figures, *titles: str) -> tuple[Figures, Figures]:
    """Give both sides names that differ."""
    if before.name != after.name:
        return before, after
    first, second = titles if titles[0] != titles[1] else ("first", "second")
    return replace(before, name=first), replace(after, name=second)


def _layers(one: Sequence[LayerRow], two: Sequence[LayerRow]) -> list[LayerRow]:
    """Return the layers of the second, with the numbers of the first as those of before."""
    old = {row.name: row for row in one}
    rows = []
    for row in two:
        known = old.get(row.name)
        sides = {
            f"{name}_before": None if known is None else getattr(known, name)
            for name in ("shape", "parameters", "macs", "ms")
        }
        rows.append(row.model_copy(update=sides))
    return rows


def _histograms(one: Sequence[HistogramPair], two: Sequence[HistogramPair]) -> list[HistogramPair]:
    """Return what came out of both, where both have it."""
    old = {(pair.layer, pair.target): pair for pair in one}
    pairs = []
    for pair in two:
        known = old.get((pair.layer, pair.target))
        sides = on_one_axis(_outcome(known), _outcome(pair)) if pair.after else {}
        zeros = {"zeros_before": None if known is None else known.zeros}
        pairs.append(pair.model_copy(update=sides | zeros))
    return pairs


def _outcome(pair: HistogramPair | None) -> WeightHistogram | None:
    if pair is None or pair.after is None:
        return None
    return WeightHistogram(low=pair.low, high=pair.high, counts=pair.after)


def _points(one: Report, two: Report) -> list[TriedPoint]:
    """Return all models that were tried in either, and both results."""
    points = {point.model_dump_json(): point for x in (one, two) for point in x.points}
    return list(points.values())


def _difference(one: Report, two: Report) -> str:
    """Return how the recipes differ; the second alone if they do not."""
    lines = unified_diff(
        one.recipe.splitlines(), two.recipe.splitlines(), one.title, two.title, lineterm=""
    )
    return "\n".join(lines) or two.recipe


def _notes(one: Report, two: Report) -> list[str]:
    """Say what makes the two hard to compare, before what is said of the second."""
    keys = ("cpu", "os", "threads")
    differ = [k for k in keys if one.environment.get(k) != two.environment.get(k)]
    known = bool(one.environment and two.environment and differ)
    warning = "measured in different environments: " + "; ".join(
        f"{key} {one.environment.get(key)} and {two.environment.get(key)}" for key in differ
    )
    return [*([warning] if known else []), *two.notes]
