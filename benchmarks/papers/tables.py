"""What is kept of a paper as a table: means over seeds, and whether a bar is met."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from papers.harness import Paper, Row

Record = dict[str, Any]


def mean_of(seeds: Record, key: str = "error") -> float:
    return statistics.fmean(found[key] for found in seeds.values())


def spread(seeds: Record) -> str:
    """Return the mean error with the standard deviation of one seed; nothing if none was measured."""
    values = [found["error"] for found in seeds.values()]
    if len(values) < 2:
        return "".join(f"{value:.2f} %" for value in values)
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} %"


def verdict(row: Row, seeds: Record, record: Record, wanted: int) -> str:
    """Return the bar of a row and whether it is met, and by how many seeds; nothing without a bar."""
    error, control = mean_of(seeds), record["control"]
    checks = [
        (f"{key} ≤ {limit:,}", mean_of(seeds, key) <= limit) for key, limit in row.limits.items()
    ]
    if row.most is not None:
        checks.insert(0, (f"≤ {row.most:.2f} %", error <= row.most))
    if row.above_control is not None:
        seeds = {seed: found for seed, found in seeds.items() if seed in control}
        if not seeds:
            return f"≤ control + {row.above_control:.2f}: not measured"
        far = mean_of(seeds) - statistics.fmean(control[seed]["error"] for seed in seeds)
        text = f"≤ control + {row.above_control:.2f} ({far:+.2f})"
        checks.insert(0, (text, far <= row.above_control))
    if row.bar is not None:
        measured = record["rows"] | {"dense": record["dense"]}
        checks.append(row.bar({name: mean_of(found) for name, found in measured.items() if found}))
    if not checks:
        return ""
    result = "met" if all(met for _, met in checks) else "**missed**"
    so_far = "" if len(seeds) >= wanted else f" so far, mean of {len(seeds)} of {wanted} seeds"
    return f"{', '.join(text for text, _ in checks)}: {result}{so_far}"


def shown(figures: Record) -> str:
    """Return the paper's figures in words."""
    forms = {"error": "{:.2f} %", "rate": "{:g} ×", "bytes": "{:,} B", "reference": "from {:.2f} %"}
    return ", ".join(forms.get(key, "{}").format(value) for key, value in figures.items())


def table(paper: Paper, record: Record) -> Iterator[str]:
    """Return what is kept of a paper as lines of a Markdown table."""
    yield "| | paper | ours | seeds | rate | bytes | dense | same-budget control | bar |"
    yield "|---|---|---|---|---|---|---|---|---|"
    dense, control = record["dense"], record["control"]
    for name, row in paper.rows.items():
        seeds = record["rows"].get(name)
        if not seeds:
            continue
        first = next(iter(seeds.values()))
        rate = f"{mean_of(seeds, 'rate'):.1f} ×" if "rate" in first else ""
        size = f"{mean_of(seeds, 'bytes'):,.0f}" if "bytes" in first else ""
        cells = [name, shown(row.paper), f"**{spread(seeds)}**", str(len(seeds)), rate, size]
        cells += [spread(dense), spread(control), verdict(row, seeds, record, paper.seeds)]
        yield f"| {' | '.join(cells)} |"
