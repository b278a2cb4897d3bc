"""The example runs as printed, to a file that LiteRT executes on integers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "keras_fit.py"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="runs on TensorFlow")
def test_the_example_ends_in_integers(tmp_path):
    pytest.importorskip("ai_edge_litert")
    command = [sys.executable, str(EXAMPLE), "--epochs", "3", "--output", "digits.tflite"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3 of 3 layers run on integers, 100.0%" in done.stdout
    simulated, executed = (
        float(re.search(rf"int8, {how} +([\d.]+)%", done.stdout)[1])
        for how in ("simulated", "executed")
    )
    assert abs(simulated - executed) < 1
    assert (tmp_path / "digits.tflite").stat().st_size < 40_000
