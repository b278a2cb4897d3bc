"""v2.4: Taylor, with the trainer and the criterion by position."""

import torch
from nni.algorithms.compression.pytorch.pruning import TaylorFOWeightFilterPruner
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data = torch.randn(16, 1, 8, 8, generator=generator)
        yield data, torch.randint(10, (16,), generator=generator)


def trainer(model, optimizer, criterion, epoch, scheduler=None, log_interval=100):
    assert scheduler is None and model.training
    calls.append(epoch)
    for data, target in batches(2):
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        optimizer.step()


calls = []
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()

config_list = [{"sparsity": 0.5, "op_names": ["conv2"]}]
pruner = TaylorFOWeightFilterPruner(model, config_list, optimizer, trainer, criterion, 2)
scores = torch.zeros(8)


def look(*_):
    if model.conv2.weight.grad is not None and len(seen) < 2:
        seen.append((model.conv2.weight.grad * model.conv2.weight.detach()).square())


seen = []
optimizer.register_step_pre_hook(look)
pruner.compress()
