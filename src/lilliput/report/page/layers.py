"""The table of layers, and the layers that drawings show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lilliput.charts.bars import draw_bar
from lilliput.report.document import HistogramPair, LayerRow, Report
from lilliput.report.page import words

_HEAVIEST = 8
_SHOWN_HISTOGRAMS = 12


@dataclass(frozen=True)
class Column:
    """A column of the table: its key, its heading, its text, and its sort key."""

    key: str
    label: str
    hint: str
    text: Callable[[LayerRow], str]
    value: Callable[[LayerRow], Any]
    first: str = "ascending"  # order after the first click


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the underlying number."""

    text: str
    value: str
    bar: str = ""


COLUMNS = (
    Column(
        *("parameters", "Parameters", "trained numbers that are left"),
        text=lambda row: words.amount(row.parameters),
        value=lambda row: row.parameters or None,
        first="descending",
    ),
    Column(
        *("kept", "Kept", "share of the parameters there were that is left and not zero"),
        text=lambda row: words.percent(row.kept),
        value=lambda row: row.kept,
    ),
    Column(
        *("bits", "Bits", "of the weight"),
        text=lambda row: words.NOTHING if row.bits is None else str(row.bits),
        value=lambda row: row.bits,
    ),
    Column(
        *("macs", "MACs", "multiplications for one example"),
        text=lambda row: words.amount(row.macs),
        value=lambda row: row.macs,
        first="descending",
    ),
    Column(
        *("sqnr", "SQNR dB", "signal to rounding noise of the layer's worst tensor"),
        text=lambda row: words.NOTHING if row.worst_sqnr is None else f"{row.worst_sqnr:.1f}",
        value=lambda row: row.worst_sqnr,
    ),
    Column(
        *("ms", "ms", "of one call, without layers inside"),
        text=lambda row: words.NOTHING if row.ms is None else f"{row.ms:.3f}",
        value=lambda row: row.ms,
        first="descending",
    ),
)


def columns_of(layers: Sequence[LayerRow]) -> list[Column]:
    """Return the columns for which at least one layer has a value."""
    return [x for x in COLUMNS if any(x.value(row) is not None for row in layers)]


def cells_of(row: LayerRow, columns: Sequence[Column]) -> list[Cell]:
    """Return the cells of a layer."""
    cells = []
    for column in columns:
        value = column.value(row)
        bar = f"{100 * value:.1f}%" if column.key == "kept" and value is not None else ""
        text = column.text(row)
        shown = "" if value is None else f"{value:.6g}"
        cells.append(Cell(text, "" if shown == text else shown or "-", bar))
    return cells


def shape_of(row: LayerRow) -> str:
    """Return the shape of a layer's weight, with the previous one if it has changed."""
    after = words.shape(row.shape)
    if row.shape_before is None or row.shape_before == row.shape:
        return after
    return f"{words.shape(row.shape_before)} → {after or 'gone'}"


def major(layers: Sequence[LayerRow]) -> list[LayerRow]:
    """Return layers with matrices or multiplications."""
    return [row for row in layers if not row.is_minor]


def heaviest(layers: Sequence[LayerRow]) -> list[tuple[str, str, str]]:
    """Return name, bar and text of the layers with the most multiplications."""

    def before(row: LayerRow) -> int:
        return (row.macs if row.macs_before is None else row.macs_before) or 0

    ranked = sorted((row for row in layers if before(row)), key=lambda row: -before(row))
    if len(ranked) < 2:
        return []
    most = max(before(ranked[0]), *(row.macs or 0 for row in ranked))
    found = []
    for row in ranked[:_HEAVIEST]:
        text = words.amount(row.macs)
        if row.macs_before is not None and row.macs_before != row.macs:
            text = f"{words.amount(row.macs_before)} → {text}"
        found.append((row.name, draw_bar((row.macs or 0) / most, before(row) / most), text))
    return found


def telling(report: Report) -> list[HistogramPair]:
    """Return the histograms that are shown initially: the noisiest tensors, then the sparsest."""
    ratios = {(row.name, target): x for row in report.layers for target, x in row.sqnr.items()}

    def worth(pair: HistogramPair) -> tuple[float, float]:
        return ratios.get((pair.layer, pair.target), 1e9), -(pair.zeros or 0.0)

    chosen = sorted(report.histograms, key=worth)[:_SHOWN_HISTOGRAMS]
    return [pair for pair in report.histograms if pair in chosen]


def caption(report: Report, pair: HistogramPair) -> str:
    """Return the caption of a histogram."""
    row = next((x for x in report.layers if x.name == pair.layer), None)
    ratio = None if row is None else row.sqnr.get(pair.target)
    parts: list[str] = [pair.target]
    parts += [] if ratio is None else [f"{ratio:.1f} dB"]
    parts += [] if not pair.zeros else [f"{words.percent(pair.zeros)} zeros"]
    return " · ".join(parts)
