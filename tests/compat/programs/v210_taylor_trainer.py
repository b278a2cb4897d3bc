"""v2.7, second stack: trainer, traced optimizer and criterion."""

import nni
import torch
from nni.algorithms.compression.v2.pytorch.pruning import TaylorFOWeightPruner
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


def trainer(model, optimizer, criterion):
    for data, target in batches(2):
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        seen.append((model.conv2.weight.grad * model.conv2.weight.detach()).square())
        optimizer.step()


seen = []
model = Net()
traced_optimizer = nni.trace(torch.optim.Adam)(model.parameters(), lr=0.001)
config_list = [{"total_sparsity": 0.5, "op_names": ["conv2"]}]
pruner = TaylorFOWeightPruner(
    model, config_list, trainer, traced_optimizer, nn.CrossEntropyLoss(), training_batches=2
)
_, masks = pruner.compress()
