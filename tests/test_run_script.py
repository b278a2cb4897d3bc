"""``./run`` installs what a command needs, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script of POSIX")


@pytest.fixture
def run(tmp_path):
    """Run the script with a Python that only notes what it is asked to install."""
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPO / name, tmp_path)
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "mkdocs"):
        (tools / name).write_text('#!/bin/sh\necho "$*" >> log\n')
        (tools / name).chmod(0o755)

    def call(command):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        subprocess.run([tmp_path / "run", command], check=True, capture_output=True)
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.rpartition(" ")[2] for line in lines if "pip install" in line]

    return call


def test_the_demo_is_completed_by_the_tests_and_not_the_other_way_round(run):
    assert run("demo") == [".[torch,onnx,demo]"]
    assert run("demo") == []
    assert run("docs") == [".[docs]"]
    assert run("demo") == []
    assert run("setup") == [".[dev]"]
    assert run("demo") == run("docs") == run("setup") == []


def test_other_requirements_are_installed_anew(run, tmp_path):
    run("setup")
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("# another one\n")
    assert run("demo") == [".[torch,onnx,demo]"]
    assert run("setup") == [".[dev]"]
