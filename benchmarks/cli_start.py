"""Measure how long ``lilliput --help`` takes when called from a shell.

Run with ``./run python benchmarks/cli_start.py``.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

COMMANDS = (["--help"], ["prune", "--help"], ["list"], ["config", "schema", "agp"], ["doctor"])
ROUNDS = 9


def measure(words: list[str]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "lilliput", *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print medians."""
    print(f"{'command':32}  wall s  CPU s")
    for words in COMMANDS:
        times = [measure(words) for _ in range(ROUNDS)]
        wall, used = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"lilliput {' '.join(words):23}  {wall:6.2f}  {used:5.2f}")


if __name__ == "__main__":
    main()
