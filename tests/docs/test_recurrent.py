"""The page on recurrent networks, run on the real ones and on real speech."""

import os
import re
import subprocess
import sys

import pytest
from test_pages import REPO, blocks, words

PAGE = "docs/recurrent.md"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the page prints."""
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"the page needs {package}")
    sys.path.insert(0, str(REPO / "benchmarks"))
    try:
        from data import voices
        from weights import resemblyzer, silero

        for fetch in (voices, resemblyzer, silero):
            fetch()
    except (SystemExit, subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the data cannot be had: {error}")
    finally:
        sys.path.remove(str(REPO / "benchmarks"))
    folder = tmp_path_factory.mktemp("recurrent")
    (folder / "page.py").write_text("\n".join(blocks(PAGE, "python")), encoding="utf-8")
    paths = [str(REPO / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_lstms_on_integers_stay_close_to_float(printed):
    found = re.findall(r"cosine to float ([\d.]+), at least ([\d.]+)", printed)
    (coarse, _), (fine, least) = [tuple(map(float, pair)) for pair in found]
    assert coarse < 0.97 < 0.998 < least <= fine  # the first one has rounded what it should not
    assert "3 of 4 layers run on integers, 77.6% of the multiplications" in printed


@pytest.mark.slow
def test_units_are_cut_exactly_and_file_and_model_cost_the_same(printed):
    errors = re.findall(r"equal to the masked model \(relative error (\S+)\)", printed)
    assert len(errors) == 2 and all(float(x) < 1e-6 for x in errors)
    before, after = re.search(r"MACs per example +([\d,]+) +([\d,]+)", printed).groups()
    assert before == after == "216,334,336"


@pytest.mark.slow
def test_the_page_shows_what_it_prints_but_for_times_and_the_cpu(printed):
    lines = [words(line) for line in printed.splitlines()]
    for line in "".join(blocks(PAGE, "text")).splitlines():
        if not re.search(r"latency|smaller on disk|VNNI|relative error|dB|measured with", line):
            assert words(line) in lines, f"the page shows {line!r}"
