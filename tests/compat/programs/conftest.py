"""What runs the programs: each is a script for NNI, executed unchanged with the shim in place."""

import runpy
from pathlib import Path

import pytest
import torch

from lilliput.compat.nni import install, uninstall

PROGRAMS = Path(__file__).parent
# The programs are run by the tests; doctest collection would import them without the shim.
collect_ignore_glob = ["v*.py", "tf*.py"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that runs a program in an empty folder, and gives back its globals."""
    monkeypatch.chdir(tmp_path)
    install()

    def run(name):
        torch.manual_seed(0)
        return runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")

    yield run
    uninstall()
