"""The Keras code on the page for users of NNI runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "migrating_from_nni.md"
# Keras makes arrays of its own variables in a way that NumPy 2 deprecates.
WARNINGS = ["-W", "error", "-W", "ignore:__array__:DeprecationWarning"]


def test_the_code_for_keras_runs(tmp_path):
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / "page.py"
    program.write_text("\n".join(["from lilliput.compat.nni import install\ninstall()", *blocks]))
    done = subprocess.run(
        [sys.executable, *WARNINGS, str(program)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
