"""The results page and the README's table are what the kept JSON says."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent
WRITE = "import results_page as p; print({}, end='')"


@pytest.mark.parametrize(
    ("page", "expression"),
    [
        ("docs/results.md", "p.page()"),
        ("docs/papers.md", "__import__('papers.page').page.page()"),
        ("README.md", "p.readme(p.README.read_text())"),
    ],
)
def test_figures_are_those_of_the_benchmarks(page, expression):
    command = [sys.executable, "-c", WRITE.format(expression)]
    folder = REPO / "benchmarks"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    shown = (REPO / page).read_text(encoding="utf-8")
    assert shown == done.stdout, f"run ./run python benchmarks/results_page.py to rewrite {page}"
