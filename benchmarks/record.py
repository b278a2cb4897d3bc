"""Store a result: JSON with the machine, the versions and the date of the measurement."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def measured() -> dict[str, Any]:
    """Return the processor, the cores, the date and the versions of this run."""
    from lilliput.report.environment import environment

    found = environment()
    flags = [name for name, has in found["flags"].items() if has]
    kept = {"cpu": found["cpu"], "flags": flags, "cores": found["cores"]}
    return kept | {"date": datetime.date.today().isoformat(), "packages": found["packages"]}


def command() -> str:
    """Return how this script was called, as `./run python benchmarks/` continues; files by name only."""
    words = (Path(x).name if Path(x).is_absolute() else x for x in sys.argv[1:])
    return shlex.join([Path(sys.argv[0]).name, *words])


def read_json(path: Path) -> dict[str, Any]:
    """Return a stored record, or an empty one."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return record


def write_json(path: Path, record: dict[str, Any], earlier: dict[str, Any] | None = None) -> None:
    """Write a record atomically.

    Parts of it may come from an earlier record: other processors that those were measured on are recorded.
    """
    now, others = measured(), machines(earlier or {})
    others = [x for x in others if (x["cpu"], x["flags"]) != (now["cpu"], now["flags"])]
    noted = {"measured": now, **({"measured_before": others} if others else {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(noted | record, indent=1) + "\n")
    partial.replace(path)


def machines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the machines on which the parts of a record were measured, the latest first."""
    latest = [record["measured"]] if record else []
    return [*latest, *record.get("measured_before", [])]
