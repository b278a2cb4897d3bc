"""The page on language models, run on the real model and a real text."""

import os
import re
import subprocess
import sys

import pytest
from test_pages import REPO, blocks, words

PAGE = "docs/language_models.md"
PREPARE = """
import numpy as np
from language import load_stories, windows

load_stories().save_pretrained("stories15M")
np.save("tokens.npy", windows(24, 129).numpy())
"""


def run(command, folder):
    paths = os.pathsep.join(filter(None, [str(REPO / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the page prints, in a folder with the model and the tokens that it asks for."""
    for package in ("transformers", "onnxruntime"):
        pytest.importorskip(package, reason=f"the page needs {package}")
    folder = tmp_path_factory.mktemp("language")
    prepare = f"import sys; sys.path.insert(0, {str(REPO / 'benchmarks')!r})\n{PREPARE}"
    done = run([sys.executable, "-c", prepare], folder)
    if done.returncode and "failed (" in done.stderr:
        pytest.skip(f"the data cannot be had: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (folder / "page.py").write_text("\n".join(blocks(PAGE, "python")), encoding="utf-8")
    done = run([sys.executable, "page.py"], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_page_runs_on_the_real_model_and_prints_what_it_shows(printed):
    lines = [words(line) for line in printed.splitlines()]
    for line in "".join(blocks(PAGE, "text")).splitlines():
        assert words(line) in lines, f"the page shows {line!r}"


@pytest.mark.slow
def test_four_bits_are_small_tied_and_executed_as_simulated(printed):
    found = dict(re.findall(r"^perplexity (\w+ ?\w*): ([\d.]+)$", printed, flags=re.MULTILINE))
    in_float, simulated, executed = (float(x) for x in found.values())
    assert simulated < 1.17 * in_float and abs(executed / simulated - 1) < 0.01
    assert float(re.search(r"stories.onnx: ([\d.]+) MB", printed)[1]) < 10
    assert "43 of 55 layers run on integers" in printed
