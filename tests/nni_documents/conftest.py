"""What the tests of the documented code blocks share: the shim, a way to run a block, a model."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall

BLOCKS = Path(__file__).parent / "blocks"
# The blocks are run by the tests, with what their documents assume; they are no test modules.
collect_ignore_glob = ["blocks/*"]


class Net(nn.Module):
    """Three convolutions and a linear layer; 8×8 images in, three numbers out."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.conv3 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(32, 3)

    def forward(self, x):
        x = self.conv3(self.conv2(self.conv1(x).relu()).relu()).relu()
        return self.fc(x.flatten(1))


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def model():
    return Net()


@pytest.fixture
def run():
    """Return a function that executes a block, and gives back the namespace it leaves."""

    def run(name, mend=None, **namespace):
        file = BLOCKS / name
        text = file.read_text(encoding="utf-8")
        if mend:
            for broken, whole in mend.items():
                assert broken in text, f"{name} has no {broken!r} to mend"
                text = text.replace(broken, whole)
        exec(compile(text, str(file), "exec"), namespace)
        return namespace

    return run


@pytest.fixture
def train():
    """Return a function that trains a model on noise for a few steps."""

    def train(model, optimizer, *shape, steps=5):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, *shape)).square().mean().backward()
            optimizer.step()

    return train


@pytest.fixture
def raw():
    """Return a function that gives the trainable parameter behind ``layer.weight``."""
    return lambda layer: dict(layer.named_parameters())["weight"]
