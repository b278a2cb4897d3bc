"""A small network, its batches and steps, and its gradients in plain NumPy, to follow algorithms by."""

import numpy as np
import torch
from torch import nn


def two_layers():
    torch.manual_seed(0)
    layers = nn.Linear(20, 30, bias=False), nn.Tanh(), nn.Linear(30, 10, bias=False)
    return nn.Sequential(*layers).double()


def batches(count):
    made = torch.Generator().manual_seed(1)
    return [torch.randn(8, 20, generator=made, dtype=torch.float64) for _ in range(count)]


def one_step(model, optimizer, x, parts=1):
    optimizer.zero_grad()
    for part in x.chunk(parts):
        (model(part) - part[:, :10].sin()).square().sum().backward()
    optimizer.step()


def gradients(weights, x):
    first, second = weights
    hidden = np.tanh(x @ first.T)
    error = 2 * (hidden @ second.T - np.sin(x[:, :10]))
    back = (error @ second) * (1 - hidden**2)
    return back.T @ x, error.T @ hidden
