"""Keep a result: JSON with the machine, the versions and the day it was measured on."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def measured() -> dict[str, Any]:
    """Return the processor, the cores, the day and the versions of this run."""
    from lilliput.report.environment import environment

    found = environment()
    flags = [name for name, has in found["flags"].items() if has]
    kept = {"cpu": found["cpu"], "flags": flags, "cores": found["cores"]}
    return kept | {"date": datetime.date.today().isoformat(), "packages": found["packages"]}


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write all of a record or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"measured": measured(), **record}, indent=1) + "\n")
    partial.replace(path)
