"""Run a page on a real network: fetch what it asks for into a folder, and run its Python there."""

import os
import subprocess
import sys

import pytest
from test_pages import REPO, blocks


def printed_by(page, folder, prepare, needs):
    """Return what a page prints; skip where a package or the data cannot be had."""
    for package in needs:
        pytest.importorskip(package, reason=f"the page needs {package}")
    code = f"import sys; sys.path.insert(0, {str(REPO / 'benchmarks')!r})\n{prepare}"
    done = run([sys.executable, "-c", code], folder)
    if done.returncode and "failed (" in done.stderr:
        pytest.skip(f"the data cannot be had: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (folder / "page.py").write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    done = run([sys.executable, "page.py"], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(command, folder):
    paths = os.pathsep.join(filter(None, [str(REPO / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
