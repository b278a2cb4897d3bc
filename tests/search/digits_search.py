"""A small residual network on scikit-learn's digits, trained once per session."""

import os
import signal
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn


@cache
def digits():
    held = load_digits()
    x = torch.tensor(held.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(held.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.inner = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.outer = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.outer(torch.relu(self.norm(self.inner(x)))))
        return self.head(torch.relu(self.down(x)).mean((2, 3)))


@cache
def weights():
    torch.manual_seed(0)
    model, (x, y, _, _) = Net(), digits()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(6):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.state_dict()


def trained():
    model = Net()
    model.load_state_dict(weights())
    return model.eval()


def accuracy(model):
    _, _, x, y = digits()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def batches(count=4):
    return list(digits()[0][: 64 * count].split(64))


def dies_once(model):
    """Kill the first worker that evaluates a network; the process named in 'parent' lives."""
    if Path("died").exists() or os.getpid() == int(Path("parent").read_text()):
        return accuracy(model)
    Path("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return None
