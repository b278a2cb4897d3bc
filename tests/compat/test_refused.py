"""Programs that do not run here: the check names the lines at which a run stops, and no others."""

import runpy
import traceback
from pathlib import Path

import pytest

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.reading.check import check_file
from lilliput.errors import LilliputError

PROGRAMS = sorted((Path(__file__).parent / "refused").glob("*.py"))


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_the_check_says_where_a_run_stops(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = enumerate(file.read_text().splitlines(), 1)
    marked = [number for number, line in lines if line.endswith("# not here")]
    with pytest.raises((LilliputError, AttributeError, TypeError)) as caught:
        runpy.run_path(str(file), run_name="__main__")
    frames = traceback.extract_tb(caught.value.__traceback__)
    stopped = [frame.lineno for frame in frames if frame.filename == str(file)]
    assert stopped[-1] in marked
    report = check_file(file)
    said = sorted({verdict.line for verdict in report.verdicts if not verdict.runs})
    assert said and set(said) <= set(marked), report
    assert not report.runs
