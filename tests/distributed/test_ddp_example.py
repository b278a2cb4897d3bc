"""examples/ddp.py runs as its docstring says, and prunes a model that still reads digits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


def test_the_example_prunes_four_fifths_of_a_net_that_still_reads_digits() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]  # on a free port
    command += ["--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"stripped: accuracy (\d\.\d+), sparsity (\d\.\d+)", last)
    assert found, done.stdout
    assert float(found[1]) > 0.9
    assert float(found[2]) == 0.8
