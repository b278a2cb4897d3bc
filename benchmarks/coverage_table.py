"""The results of speedup_coverage.py as lines and as a markdown table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

Record = dict[str, Any]


def summary(name: str, record: Record) -> str:
    """Return one line about one model, for following a run."""
    parts = [f"{name:<28}"]
    for side in ("float32", "float64", "peer"):
        if side in record:
            part = record[side]
            words = [f"{side} {part['status']}", part.get("kind") or "", part.get("message") or ""]
            if "error" in part:
                words.append(f"error {part['error']:.1e}")
            if "parameters_kept" in part:
                words.append(f"kept {part['parameters_kept']:.2f}")
            parts.append(" ".join(word for word in words if word)[:160])
    return " | ".join(parts)


def status(record: Record) -> str:
    """Return the verdict on one model: equal only if it is in both precisions."""
    if "float32" not in record:
        return "not run"
    both = [record["float32"]["status"], record.get("float64", {}).get("status", "equal")]
    return next((bad for bad in ("wrong", "crash", "refused") if bad in both), "equal")


def markdown(models: dict[str, Record]) -> str:
    lines = [
        "| model | speedup | result | error | masked vs. dense | CPU s | parameters | MACs | latency "
        "| Torch-Pruning | CPU s | parameters | latency |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, record in models.items():
        ours, peer = record.get("float32", {}), record.get("peer", {})
        cells = [
            name,
            status(record),
            ours.get("kind", ""),
            number(ours, "error", "{:.0e}"),
            number(ours, "masked_deviation", "{:.1g}"),
            number(ours, "seconds", "{:.1f}"),
            number(ours, "parameters_kept", "{:.2f}"),
            number(ours, "macs_kept", "{:.2f}"),
            number(ours, "latency_ratio", "{:.2f}"),
            peer.get("status", "not run"),
            number(peer, "seconds", "{:.1f}") if peer.get("status") == "ok" else "",
            number(peer, "parameters_kept", "{:.2f}") if peer.get("status") == "ok" else "",
            number(peer, "latency_ratio", "{:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *totals(models)])


def totals(models: dict[str, Record]) -> list[str]:
    count = len(models)
    ours = Counter(status(record) for record in models.values())
    kinds = Counter(
        r["float32"]["kind"] for r in models.values() if r.get("float32", {}).get("kind")
    )
    peer = Counter(record.get("peer", {}).get("status", "not run") for record in models.values())
    lines = [
        f"{count} models. Lilliput: {words(ours)}. Returned as: {words(kinds) or 'nothing yet'}.",
        f"Torch-Pruning (runs with the same output shape; equality is not tested): {words(peer)}.",
    ]
    sides: list[tuple[str, str, Callable[[Record], bool]]] = [
        ("Lilliput", "float32", lambda record: status(record) == "equal"),
        ("Torch-Pruning", "peer", lambda record: record.get("peer", {}).get("status") == "ok"),
    ]
    for title, side, good in sides:
        seconds = [record[side]["seconds"] for record in models.values() if good(record)]
        if seconds:
            median, largest = statistics.median(seconds), max(seconds)
            lines.append(f"{title}, CPU seconds: median {median:.2f}, largest {largest:.1f}.")
    return lines


def words(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def number(record: Record, key: str, form: str) -> str:
    return form.format(record[key]) if key in record else ""
