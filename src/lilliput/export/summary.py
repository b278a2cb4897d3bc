"""The representations of an export result: a few lines, a table of all layers, and a table for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput import tables as table
from lilliput.frameworks.exporting.layer import Layer, some_of
from lilliput.printing import printable

if TYPE_CHECKING:
    from lilliput.export.result import ExportResult


def headline(result: ExportResult) -> str:
    """Return the file, its size, its target, and how much of it runs on integers."""
    return f"{result.path.name}: {_size(result)}, {_layers(result)}"


def summary_lines(result: ExportResult) -> list[str]:
    """Return the lines of an export summary, without a line per layer."""
    lines = [f"{result.path}: {_size(result)}"]
    lines += [f"  sizes: {_sizes(result)}"] if result.sizes else []
    lines += [f"  {name}: {text}" for name, text in _agreements(result)]
    if result.layers:
        if not result.runtimes:
            lines.append("  not executed; the layers that would run on integers are an estimate:")
        lines.append(f"  {_layers(result)}")
        lines += [f"    in float: {text}" for text in _in_float(result)]
    lines += [f"  {line}" for line in saturation_lines(result)]
    lines += [f"  note: {note}" for note in result.notes]
    return [printable(line) for line in lines]


def cpu_lines(result: ExportResult) -> list[str]:
    """Return the CPUs that a file targets, and the consequences for its layers."""
    if result.cpu is None:
        return []
    return [f"{result.path.name} is for {result.cpu}", *saturation_lines(result)]


def saturation_lines(result: ExportResult) -> list[str]:
    """Return which weights were made coarser, and which layers can still saturate."""
    changed = [row.layer for row in result.guarded if row.is_changed]
    open_ = [row.layer for row in result.guarded if not row.is_changed]
    lines = []
    if changed:
        lines.append(
            "weights made coarser to avoid 16-bit saturation on CPUs without VNNI in layers "
            f"{some_of(changed)}"
        )
    if open_ and result.cpu is not None and result.cpu.has_vnni:
        lines.append(
            f"on CPUs without VNNI, 16-bit sums would saturate in layers {some_of(open_)}: to run there, "
            "export with assume_vnni=False"
        )
    elif open_:
        lines.append(
            f"16-bit sums may saturate on CPUs without VNNI in layers {some_of(open_)}: the algorithm "
            "cannot make weights coarser; give these layers 7 bits"
        )
    return lines


def layer_table(layers: list[Layer]) -> str:
    """Return one line per layer, below a header."""
    rows: list[tuple[str, ...]] = [("layer", "op", "weight", "kernel", "MACs", "in float because")]
    for x in layers:
        macs = "?" if x.macs is None else f"{x.macs:,}"
        rows.append((printable(x.name), x.op, x.weight_dtype, x.kernel, macs, x.reason))
    if is_plain(layers) or not any(x.reason for x in layers):
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def html_table(result: ExportResult) -> str:
    """Return a small table for notebooks."""
    rows = [("file", _size(result)), ("layers", _layers(result))]
    rows += [("sizes", _sizes(result))] if result.sizes else []
    rows += [("in float", text) for text in _in_float(result)]
    rows += _agreements(result)
    rows += [("saturation", line) for line in saturation_lines(result)]
    rows += [("note", note) for note in result.notes]
    return table.html_table(rows, title=result.path.name)


def is_plain(layers: list[Layer]) -> bool:
    """Whether no layer uses integers."""
    return not any(x.integer or "int" in x.weight_dtype for x in layers)


def _size(result: ExportResult) -> str:
    cpu = "" if result.cpu is None else f", {result.cpu}"
    return f"{result.bytes / 1e6:.2f} MB for {result.target}{cpu}"


def _sizes(result: ExportResult) -> str:
    return ", ".join(f"{name} {text}" for name, text in result.sizes.items())


def _agreements(result: ExportResult) -> list[tuple[str, str]]:
    found = []
    for name, x in result.runtimes.items():
        text = f"output {x.sqnr:.1f} dB, largest difference {x.max_error:.3g}"
        if x.local_lsb is not None:
            steps = "1 step" if x.local_lsb == 1 else f"{x.local_lsb:g} steps"
            text = f"each tensor within {steps} of the simulation; {text}"
        found.append((name, text))
    return found


def _layers(result: ExportResult) -> str:
    layers = result.layers
    if is_plain(layers):
        return f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'} in float: nothing is quantized"
    count = sum(layer.integer for layer in layers)
    return (
        f"{count} of {len(layers)} layers run on integers, {result.integer_share:.1%} of the "
        "multiplications"
    )


def _in_float(result: ExportResult) -> list[str]:
    """Return the layers that do not run on integers, by reason."""
    groups: dict[str, list[Layer]] = {}
    for layer in result.layers:
        if not layer.integer and not is_plain(result.layers):
            groups.setdefault(layer.reason or "unknown reason", []).append(layer)
    total = sum(layer.macs or 0 for layer in result.layers)
    lines = []
    for reason, members in groups.items():
        share = sum(layer.macs or 0 for layer in members) / total if total else 0.0
        names = some_of([layer.name for layer in members], 6)
        lines.append(f"{names} ({share:.1%}): {reason}")
    return lines
