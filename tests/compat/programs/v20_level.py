"""v2.0: the algorithms' own path, fine-tuning, export."""

import torch
import torch.nn.functional as F
from nni.algorithms.compression.pytorch.pruning import LevelPruner
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
config_list = [
    {"sparsity": 0.8, "op_types": ["default"]},
    {"exclude": True, "op_names": ["fc"]},
]
pruner = LevelPruner(model, config_list, optimizer)
model = pruner.compress()
for data, target in batches(5):
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
pruner.export_model(model_path="model.pth", mask_path="mask.pth")
masks, state = torch.load("mask.pth"), torch.load("model.pth")
