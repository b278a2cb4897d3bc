"""One undisturbed run that the tests look at and compare with."""

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for stopped_runs.py

collect_ignore = ["kill.py", "project"]  # run by tests, not collected for doctests
PROJECT = Path(__file__).parent / "project"
SMALL = PROJECT / "small.yaml"


def _digest(folder):
    """Return the hash of each file that has nothing to do with time; of the others the name."""
    timed = ("receipt.json", "report.html", "report.json", "run.json")
    return {
        str(path.relative_to(folder)): ""
        if path.name in timed
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def digest():
    """A function of a folder that tells two runs apart."""
    return _digest


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The finished run of small.yaml, and the events on the way."""
    pytest.importorskip("onnxruntime")
    from lilliput.recipes import run

    events = []
    result = run(SMALL, tmp_path_factory.mktemp("run") / "small", progress=events.append)
    return result, events
