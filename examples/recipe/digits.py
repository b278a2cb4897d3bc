"""The functions named in ``recipe.yaml``: a trained model, its data, its training and its evaluation.

Each function is small, and none knows of compression. The data are 1797 handwritten digits of 8 × 8 pixels.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
test, training = shuffled[:450], shuffled[450:]


def build():
    """Return the trained model; normally you would load its weights here."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer = make_optimizer(model)
    for epoch in range(6):
        train_epoch(model, optimizer, batches(epoch))
    return model.eval()


def batches(epoch=0):
    """Return the shuffled batches of an epoch; the same epoch always gives the same batches."""
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(epoch))
    return [(images[rows], labels[rows]) for rows in training[order].split(64)]


def make_optimizer(model):
    """Return the optimizer that trains a model."""
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)


def train_epoch(model, optimizer, batches):
    """Train for one epoch."""
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def accuracy(model):
    """Return the accuracy on the test digits; an exported file is called like a model."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())
