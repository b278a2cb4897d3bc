"""What Lilliput adds: import time over torch's, and megabytes of dependencies.

./run python benchmarks/footprint.py
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

CODE = "import time; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"
OVER_TORCH = f"import torch; {CODE.format('lilliput.torch')}"


def import_seconds(code: str, repeat: int = 9) -> float:
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ]
    runs += [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(repeat)
    ]
    return statistics.median(float(run.stdout) for run in runs[1:])


def core_packages() -> set[str]:
    """Every package that the core needs, found by following the declared requirements."""
    found: set[str] = set()
    waiting = ["lilliput"]
    while waiting:
        for line in requires(waiting.pop()) or []:
            if "extra ==" in line or ("python_version" in line and "<" in line):
                continue
            name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
            if name.lower() not in found:
                found.add(name.lower())
                waiting.append(name)
    return found


def megabytes(name: str) -> float:
    files = distribution(name).files or []
    sizes = [Path(str(f.locate())) for f in files]
    return sum(path.stat().st_size for path in sizes if path.is_file()) / 1e6


def main() -> None:
    source = Path(__file__).parent.parent / "src"
    own = sum(p.stat().st_size for p in source.rglob("*.py")) / 1e6
    packages = {name: round(megabytes(name), 2) for name in sorted(core_packages())}
    results = {
        "import lilliput [s]": import_seconds(CODE.format("lilliput")),
        "import torch [s]": import_seconds(CODE.format("torch")),
        "import lilliput.torch, torch already imported [s]": import_seconds(OVER_TORCH),
        "core with dependencies [MB]": own + sum(packages.values()),
    }
    for name, value in results.items():
        print(f"{name:<52}{value:8.3f}")
    print(packages)
    path = Path(__file__).parent / "results" / "footprint.json"
    path.write_text(json.dumps(results | {"packages": packages}, indent=1) + "\n")


if __name__ == "__main__":
    main()
