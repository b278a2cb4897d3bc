"""What runs the programs: each is a script for NNI, executed unchanged with the shim in place."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.reading.check import check_file
from lilliput.compat.nni.reading.rewriting import rewrite

PROGRAMS = Path(__file__).parent
# The programs are run by the tests; doctest collection would import them without the shim.
collect_ignore_glob = ["v*.py", "tf*.py"]
sys.path.insert(0, str(PROGRAMS))  # what they import: trained_digits


@pytest.fixture(params=["written", pytest.param("migrated", marks=pytest.mark.slow)])
def program(request, tmp_path, monkeypatch):
    """Return a function that runs a program in an empty folder, and gives back its globals.

    The check reads the same program, and has to say that all of it runs. What ``lilliput config migrate``
    makes of it does the same, and without the shim if nothing of NNI is left.
    """
    monkeypatch.chdir(tmp_path)
    install()

    def run(name):
        file = PROGRAMS / f"{name}.py"
        report = check_file(file)
        if request.param == "migrated":
            file = tmp_path / file.name
            file.write_bytes(rewrite((PROGRAMS / file.name).read_bytes()))
            if not check_file(file).verdicts:
                uninstall()
        torch.manual_seed(0)
        ran = runpy.run_path(str(file), run_name="__main__")
        assert report.runs and report.verdicts, report
        return ran

    yield run
    uninstall()
