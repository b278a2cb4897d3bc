"""The summary of the suite says what was skipped."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.parametrize("x", [1, 2])
def test_a(x):
    pytest.skip("no Chromium found")


@pytest.mark.skipif(True, reason="needs AVX-512")
def test_b():
    pass


def test_c():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_summary_groups_what_was_skipped_by_reason(tmp_path, processes):
    source = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(source, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "skipped: 2 (no Chromium found), 1 (needs AVX-512)\n" in done.stdout, done.stdout


def test_nothing_skipped_is_said_too(tmp_path):
    source = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(source, encoding="utf-8")
    (tmp_path / "test_some.py").write_text("def test_a(): pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "skipped: none\n" in done.stdout, done.stdout
