"""What the recipes of the tests name: a small CNN on the first of scikit-learn's digits."""

import functools

import torch
from sklearn.datasets import load_digits
from torch import nn

A_NUMBER = 3


@functools.cache
def digits():
    bunch = load_digits()
    images = (torch.tensor(bunch.images, dtype=torch.float32) / 16).unsqueeze(1)
    return images[:512], torch.tensor(bunch.target)[:512]


def build():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.1), nn.Linear(8 * 16, 10)),
    )


def batches():
    images, labels = digits()
    data = torch.utils.data.TensorDataset(images[:256], labels[:256])
    return torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def accuracy(model):
    images, labels = digits()
    with torch.no_grad():
        return float((model(images[256:]).argmax(1) == labels[256:]).float().mean())
