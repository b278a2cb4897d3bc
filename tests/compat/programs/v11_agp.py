"""v1.1: AGP, whose epochs and steps the user's loop reports."""

import torch
import torch.nn.functional as F
from nni.compression.torch import AGP_Pruner
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


model = Net()
config = {
    "initial_sparsity": 0.0,
    "final_sparsity": 0.8,
    "start_epoch": 0,
    "end_epoch": 4,
    "frequency": 1,
    "op_types": ["default"],
}
pruner = AGP_Pruner([config])
pruner.compress(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
zeros = []
for epoch in range(5):
    pruner.update_epoch(epoch)
    for data, target in batches(2):
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()
        pruner.step()
    zeros.append(int((model.fc.weight == 0).sum()))
