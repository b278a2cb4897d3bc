"""What the programs that search begin with: a small network, trained on scikit-learn's digits once."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1)
        self.conv3 = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.fc = nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(torch.relu(self.conv3(x)).flatten(1))


@cache
def sets():
    held = load_digits()
    images = torch.tensor(held.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(held.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return TensorDataset(images[:1200], labels[:1200]), TensorDataset(images[1200:], labels[1200:])


def loaders():
    """Return batches to train and to test on."""
    train, test = sets()
    return DataLoader(train, batch_size=64), DataLoader(test, batch_size=300)


def train(model, optimizer, criterion, loader):
    for images, labels in loader:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()


def test_accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    return hits / len(loader.dataset)


test_accuracy.__test__ = False


@cache
def _weights():
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model, loader = Net(), DataLoader(sets()[0], batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(6):
        train(model, optimizer, nn.CrossEntropyLoss(), loader)
    torch.random.set_rng_state(state)
    return model.state_dict()


def trained():
    """Return the trained network."""
    model = Net()
    model.load_state_dict(_weights())
    return model
