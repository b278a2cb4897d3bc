"""A trained network that takes no time, and an evaluation that can end the process."""

import os
import signal
from functools import cache

import recipe_tiny
import torch

calls = []


@cache
def weights():
    torch.manual_seed(0)
    model, (inputs, labels) = recipe_tiny.build(), recipe_tiny.data()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.state_dict()


def build():
    model = recipe_tiny.build()
    model.load_state_dict(weights())
    return model.eval()


def accuracy(model):
    """Die at the call that the environment names: by kill -9, or by an exit."""
    calls.append(1)
    if len(calls) == int(os.environ.get("KILL_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    if len(calls) == int(os.environ.get("STOP_AT", 0)):
        raise SystemExit("stopped")
    return recipe_tiny.accuracy(model)
