"""A working directory with a module that commands can name, and a way to run commands in-process."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from lilliput.cli.app import make_app

sys.path.insert(0, str(Path(__file__).parent))

TINY = '''
"""A tiny model and its data; torch is imported when it is needed."""


def build():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
    )


def batches():
    import torch

    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        yield torch.randn(8, 1, 6, 6, generator=draw), torch.randint(4, (8,), generator=draw)


def accuracy(model):
    import torch

    with torch.no_grad():
        return float(sum((model(x).argmax(1) == y).float().mean() for x, y in batches()) / 2)


def example_inputs():
    return next(iter(batches()))[0]


def make_optimizer(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def train_epoch(model, optimizer, batches):
    for inputs, targets in batches:
        pass


def fails(model):
    return [][len("three")]


NUMBER = 3
'''


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with the module ``tiny_cli``."""
    (tmp_path / "tiny_cli.py").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tiny_cli", None)
    yield tmp_path
    sys.modules.pop("tiny_cli", None)


@pytest.fixture(scope="session")
def lilliput():
    """Run a command line in this process: ``lilliput("list", "l*")``."""
    group = get_command(make_app())

    def run(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = group.run([str(x) for x in arguments])
        return Ended(code, out.getvalue(), err.getvalue())

    return run
