"""kill -9 of a real process; ``benchmarks/kill_resume.py`` does it at random times."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lilliput.recipes import load_recipe
from lilliput.recipes.units import units_of

HERE = Path(__file__).parent
RECIPE = HERE / "project" / "tiny.yaml"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_several_times_ends_with_the_same_files(tmp_path, digest):
    units = units_of(load_recipe(RECIPE))
    numbers = {unit.text: str(unit.index + 1) for unit in units}
    moments = [
        numbers["prune (linear): epoch 2 of 3"],
        numbers["speedup: cut channels out"] + "+",
        numbers["quantize (ptq): calibrate"] + "+",
        str(len(units) + 1),  # before receipt and report
    ]
    command = [sys.executable, HERE / "kill.py", RECIPE, tmp_path, *moments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert "model.safetensors" in digest(tmp_path / "whole")
