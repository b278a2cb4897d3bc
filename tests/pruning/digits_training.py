"""Handwritten digits and a network for them, to see that sparse training really trains."""

from functools import cache

import torch
from torch import nn

TRAINED_ON = 1200


@cache
def data():
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.data / 8 - 1).float(), torch.tensor(digits.target)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
    )


def train(model, optimizer, epochs, on_epoch=lambda epoch: None, seed=0):
    """Train in batches of 32; ``on_epoch(epoch)`` is called at the start of each epoch."""
    x, y = data()
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        on_epoch(epoch)
        for part in torch.randperm(TRAINED_ON, generator=order).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model):
    """Return the share of digits that were not trained on and are named right."""
    x, y = data()
    return float((model(x[TRAINED_ON:]).argmax(1) == y[TRAINED_ON:]).float().mean())


def sparsity(model):
    """Return the share of zeros among the weights of a plain network."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
