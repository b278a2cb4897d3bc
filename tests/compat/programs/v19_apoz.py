"""v1.9: average percentage of zeros, over two batches after compress()."""

import torch
import torch.nn.functional as F
from nni.compression.torch import ActivationAPoZRankFilterPruner
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
config_list = [{"sparsity": 0.5, "op_names": ["conv1"]}]
pruner = ActivationAPoZRankFilterPruner(model, config_list, optimizer, "relu", 2)
model = pruner.compress()
outputs = []
for data, target in batches(2):
    outputs.append(model.conv1(data).detach().relu())
    model.conv1.batches_seen = len(outputs)
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
