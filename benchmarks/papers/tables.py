"""The records of the papers as tables: means over seeds, and whether a bar is met."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]


def mean_of(seeds: Record, key: str = "error") -> tuple[float, float]:
    """Return the mean over seeds and the standard deviation of one seed."""
    values = [found[key] for found in seeds.values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def verdict(row: Record, control: float) -> str:
    """Return whether a row meets its bar, with the bar; nothing if it has none."""
    error, _ = mean_of(row["seeds"])
    parts, is_met = [], True
    if row["most"] is not None:
        parts.append(f"≤ {row['most']:.2f} %")
        is_met &= error <= row["most"]
    if row["above_control"] is not None:
        parts.append(f"≤ control + {row['above_control']:.2f}")
        is_met &= error <= control + row["above_control"]
    for key, limit in row["limits"].items():
        parts.append(f"{key} ≤ {limit:,}")
        is_met &= mean_of(row["seeds"], key)[0] <= limit
    return f"{', '.join(parts)}: {'met' if is_met else '**missed**'}" if parts else ""


def shown(figures: Record) -> str:
    """Return the paper's figures in words."""
    forms = {"error": "{:.2f} %", "rate": "{:g} ×", "bytes": "{:,} B", "reference": "from {:.2f} %"}
    return ", ".join(forms.get(key, "{}").format(value) for key, value in figures.items())


def table(record: Record) -> Iterator[str]:
    """Return a record as lines of a Markdown table."""
    dense, control = (mean_of(record[key]) for key in ("dense", "control"))
    yield "| | paper | ours | rate | bytes | dense | same-budget control | bar |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, row in record["rows"].items():
        seeds = row["seeds"]
        if not seeds:
            continue
        error, spread = mean_of(seeds)
        first = next(iter(seeds.values()))
        rate = f"{mean_of(seeds, 'rate')[0]:.1f} ×" if "rate" in first else ""
        size = f"{mean_of(seeds, 'bytes')[0]:,.0f}" if "bytes" in first else ""
        cells = [
            name,
            shown(row["paper"]),
            f"**{error:.2f}** ± {spread:.2f} % ({len(seeds)} seeds)",
        ]
        cells += [rate, size, *(f"{x:.2f} ± {s:.2f} %" for x, s in (dense, control))]
        yield f"| {' | '.join([*cells, verdict(row, control[0])])} |"
