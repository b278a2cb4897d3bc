"""``lilliput inspect``: layers, shapes, parameters, MACs, and what can be compressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.inputs import Sources
from lilliput.cli.models import is_file, open_model
from lilliput.cli.table import Table
from lilliput.cli.terminal import Terminal


def inspect(
    terminal: Terminal,
    model: options.Model,
    sources: Sources,
    trust: options.Trust = False,
) -> None:
    """Show layers, costs, and what can be compressed.

    With inputs, also MACs and the channels that can only be removed together.
    """
    if terminal.dry_run:
        terminal.would([f"load {model}", "run it once, if there are inputs", "list its layers"])
        return
    if is_file(model):
        _inspect_file(terminal, Path(model))
        return
    loaded, framework, example = open_model(model, sources, trust)
    from lilliput.report.snapshot import snapshot

    taken = snapshot(loaded, example)
    can_prune = _prunable(loaded)
    groups, missing = _groups(loaded, example, framework)
    rows = [_row(layer, can_prune, groups) for layer in taken.layers]
    totals = {"parameters": taken.parameters, "nonzeros": taken.nonzeros, "macs": taken.macs}
    result: dict[str, Any] = {"model": model, "framework": framework, **totals, "layers": rows}
    result["groups"] = None if groups is None else [_describe(group) for group in groups]
    result["pinned"] = None if groups is None else {p.tensor: p.reason for p in groups.pinned}
    terminal.result(result, *_parts(result, missing))


def _parts(result: dict[str, Any], missing: str) -> list[Any]:
    """Return the output for people."""
    cells = [
        [
            row["name"] or "(the model)",
            row["type"],
            "×".join(map(str, row["shape"])) or "–",
            f"{row['parameters']:,}",
            "–" if row["macs"] is None else f"{row['macs']:,}",
            "yes" if row["compressible"] else "–",
            _channels(row),
        ]
        for row in result["layers"]
    ]
    columns = ["layer", "type", "weight", ">parameters", ">MACs", "compress", "channel group"]
    macs = "" if result["macs"] is None else f", {result['macs']:,} MACs per example"
    zeros = result["parameters"] - result["nonzeros"]
    share = (
        f" ({zeros / max(result['parameters'], 1):.0%} of them zero)"
        if zeros > result["parameters"] / 100
        else ""
    )
    parts = [Table(columns, cells), "", f"{result['parameters']:,} parameters{share}{macs}"]
    if result["groups"] is None:
        return [*parts, f"channel groups: {missing}"]
    units = sum(group["units"] for group in result["groups"])
    parts.append(f"{len(result['groups'])} channel groups with {units:,} units can be cut out")
    rows = [[g["name"], str(g["units"]), ", ".join(g["made_by"])] for g in result["groups"]]
    return [*parts, "", Table(["channel group", ">units", "produced by"], rows)] if rows else parts


def _channels(row: dict[str, Any]) -> str:
    if row["group"]:
        return str(row["group"])
    return f"stay: {row['pinned']}" if row["pinned"] else "–"


def _row(layer: Any, can_prune: set[str], groups: Any) -> dict[str, Any]:
    tensor = (
        {f"{layer.name}.weight", f"{layer.name}.kernel"} if layer.name else {"weight", "kernel"}
    )
    group = next((g.name for g in groups or () if tensor & _makers(g)), None)
    pinned = next((p.reason for p in (groups.pinned if groups else ()) if p.tensor in tensor), None)
    return {
        "name": layer.name,
        "type": layer.type,
        "shape": layer.shape,
        "parameters": layer.parameters,
        "nonzeros": layer.nonzeros,
        "macs": layer.macs,
        "bits": layer.bits,
        "compressible": layer.name in can_prune,
        "group": group,
        "pinned": None if group else pinned,
    }


def _makers(group: Any) -> set[str]:
    return {part.tensor for part in group.slices if part.is_output}


def _describe(group: Any) -> dict[str, Any]:
    read = sorted({part.tensor for part in group.slices if not part.is_output})
    return {
        "name": group.name,
        "units": group.size,
        "made_by": sorted(_makers(group)),
        "read_by": read,
    }


def _prunable(model: Any) -> set[str]:
    """Return the layers that a rule with the default types selects."""
    from lilliput.frameworks import backend_of

    backend = backend_of(model)
    layers = [x for x in backend.layers(model) if x.weight_name is not None]
    return {
        path
        for layer in layers
        if layer.types & backend.default_types
        for path in (layer.name, *(p for owner in layer.owners for p in owner.paths))
    }


def _groups(model: Any, example: Any, framework: str) -> tuple[Any, str]:
    """Return the channel groups, or why there are none."""
    from lilliput.errors import LilliputError
    from lilliput.speedup.channels import channel_groups

    if example is None and framework == "torch":
        return None, "pass --inputs, --data or --input-shape to see them"

    try:
        return channel_groups(model, example), ""
    except LilliputError as error:
        return None, str(error)


def _inspect_file(terminal: Terminal, path: Path) -> None:
    from lilliput.cli.executed import describe_file

    found = describe_file(path)
    rows = [
        [x["kind"], x["name"], "×".join(map(str, x["shape"])), x["dtype"]] for x in found["tensors"]
    ]
    text = f"{path.name}: {found['bytes']:,} bytes, read by {found['runtime']}"
    operations = ", ".join(f"{name} ×{count}" for name, count in found["operations"].items())
    parts = [text, Table(["", "name", "shape", "type"], rows)]
    terminal.result(found, *parts, *([f"operations: {operations}"] if operations else []))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "inspect", "Look")(inspect)
