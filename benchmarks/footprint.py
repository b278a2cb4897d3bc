"""Measure what Lilliput adds: import time on top of torch, and the installed size in megabytes.

Times are CPU times, so that other work on the machine does not count. Sizes are those of
folders after a fresh pip install, including compiled files.

./run python benchmarks/footprint.py
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, requires
from pathlib import Path

from record import RESULTS, write_json

REPO = Path(__file__).parent.parent
CODE = "import time; s = time.process_time(); import {}; print(time.process_time() - s)"
OVER_TORCH = f"import torch; {CODE.format('lilliput.torch')}"
PRUNER = f"import torch; {CODE.format('lilliput.pruning.level')}"


def import_seconds(code: str, repeat: int = 5) -> float:
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True)
        for _ in range(repeat + 1)
    ]
    return statistics.median(float(run.stdout) for run in runs[1:])  # the first one warms up


@contextmanager
def installed(what: str) -> Iterator[Path]:
    """Install requirements with all dependencies into an empty folder, ignoring existing packages."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["--constraint", str(REPO / "constraints.txt")]
        subprocess.run([*pip, *pinned, "--target", folder, what], check=True)
        yield Path(folder)


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def by_package(folder: Path) -> dict[str, float]:
    """Return the megabytes of each package in a folder, the largest first."""
    sizes = {}
    for package in distributions(path=[str(folder)]):
        files = [Path(str(file.locate())) for file in package.files or []]
        files = [path for path in files if path.is_relative_to(folder) and path.is_file()]
        sizes[package.metadata["Name"]] = round(sum(x.stat().st_size for x in files) / 1e6, 2)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def brought_by(framework: str) -> set[str]:
    """Return the packages that installing a framework includes anyway."""
    found, waiting = {framework}, [framework]
    while waiting:
        for line in requires(waiting.pop()) or []:
            name = canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0])
            if "extra ==" not in line and name not in found and is_installed(name):
                found.add(name)
                waiting.append(name)
    return found


def is_installed(name: str) -> bool:
    return any(canonical(x.metadata["Name"]) == name for x in distributions(name=name))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    sizes, packages = {}, {}
    for name, what in (("core", str(REPO)), ("core and command line", f"{REPO}[cli]")):
        with installed(what) as folder:
            sizes[f"{name} with dependencies [MB]"] = round(megabytes(folder), 2)
            packages[name] = by_package(folder)
    for framework in ("torch", "keras"):
        there = brought_by(framework)
        own = [size for x, size in packages["core"].items() if canonical(x) not in there]
        sizes[f"core with dependencies, beyond {framework}'s [MB]"] = round(sum(own), 2)
    results = {
        "import lilliput [CPU s]": import_seconds(CODE.format("lilliput")),
        "import torch [CPU s]": import_seconds(CODE.format("torch")),
        "import lilliput.torch, torch already imported [CPU s]": import_seconds(OVER_TORCH),
        "the same with LevelPruner [CPU s]": import_seconds(PRUNER),
        **sizes,
    }
    for name, value in results.items():
        print(f"{name:<56}{value:8.3f}")
    print(json.dumps(packages, indent=1))
    write_json(RESULTS / "footprint.json", {"results": results, "packages": packages})


if __name__ == "__main__":
    main()
