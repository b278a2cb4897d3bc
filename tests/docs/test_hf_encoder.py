"""The page on encoders of Hugging Face, run on the real MiniLM and real news."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_pages import REPO, blocks

PAGE = "docs/hf_encoder.md"
NEWS = """
import json
from pathlib import Path

pairs = [tuple(x) for x in json.loads(Path(__file__).with_name("news.json").read_text())]
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the page prints, in a folder with the network and the news that it asks for."""
    for package in ("transformers", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"the page needs {package}")
    sys.path.insert(0, str(REPO / "benchmarks"))
    try:
        from data import reuters
        from weights import minilm

        news = {title: body for title, body in reuters()[:9000] if len(body) > 300}
        network = minilm()
    except SystemExit as error:
        pytest.skip(f"the data cannot be had: {error}")
    finally:
        sys.path.remove(str(REPO / "benchmarks"))
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "news.json").write_text(json.dumps(list(news.items())[::20][:282]))
    (folder / "news.py").write_text(NEWS)
    page = "\n".join(blocks(PAGE, "python"))
    name = '"sentence-transformers/all-MiniLM-L6-v2"'
    assert name in page
    (folder / "page.py").write_text(page.replace(name, repr(str(network))), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.slow
def test_the_file_is_small_takes_every_length_and_finds_as_well_as_float(printed):
    text, folder = printed
    assert Path(folder, "minilm_int8.onnx").stat().st_size < 25e6
    assert "sizes: batch any, sequence 1 to 512" in text
    assert "512 (1, 512, 384)" in text
    before, after = map(float, re.search(r"R@1: ([\d.]+) in float, ([\d.]+) as", text).groups())
    assert after >= before - 0.02


@pytest.mark.slow
def test_the_receipt_times_both_sides_in_one_runtime(printed):
    text, _ = printed
    assert "smaller on disk" in text
    assert "speed not compared (ONNX Runtime now" not in text


@pytest.mark.slow
def test_the_page_shows_what_it_prints_but_for_numbers(printed):
    """What the CPU decides is left out: which weights are coarser, and what is faster."""
    text, _ = printed
    lines = {words(line) for line in text.splitlines()}
    for line in "".join(blocks(PAGE, "text")).splitlines():
        if not re.search(r"VNNI|smaller on disk|latency|non-zeros", line):
            assert words(line) in lines, f"the page shows {line!r}"


def words(line):
    return " ".join(re.sub(r"[\d.,]+(e-\d+)?", "#", line).split())
