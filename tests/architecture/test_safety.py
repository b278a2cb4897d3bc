"""Promises that a search of the source can check."""

import re
from pathlib import Path

import pytest

import lilliput

SOURCE = Path(lilliput.__file__).parent
REPO = SOURCE.parent.parent
FORBIDDEN = {
    "pickle is never read or written": r"^\s*(import|from) (c?pickle|dill|cloudpickle|joblib|shelve)\b",
    "torch files are read safely": r"weights_only\s*=\s*False",
    "YAML is read safely": r"^\s*(import|from) yaml\b|typ=.(unsafe|base|rt)|unsafe_load",
    "nothing is evaluated": r"\b(eval|exec)\(",
    "nobody phones home": r"^\s*(import|from) (requests|urllib|http|socket)\b",
    "no assert guards users": r"^\s*assert ",
}


@pytest.mark.parametrize(("promise", "pattern"), FORBIDDEN.items(), ids=list(FORBIDDEN))
def test_the_source_keeps_its_promises(promise, pattern):
    files = [*SOURCE.rglob("*.py"), *(REPO / "examples").rglob("*.py")]
    hits = [
        f"{path.name}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
        and not line.lstrip().startswith((">>>", "...", "#"))
        and not re.search(r"(\.eval\(\)|def eval\(self\))", line)
    ]
    assert hits == []


def test_the_promises_can_be_broken():
    """Each pattern finds what it forbids."""
    samples = ["import pickle", "torch.load(p, weights_only=False)", "import yaml"]
    samples += ["eval(text)", "import socket", "    assert x"]
    for pattern, sample in zip(FORBIDDEN.values(), samples, strict=True):
        assert re.search(pattern, sample)
