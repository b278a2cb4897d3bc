"""v1.9: layers whose outputs are added prune the same filters."""

import torch
from nni.compression.torch import FPGMPruner, L1FilterPruner
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


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 4, 3)

    def forward(self, x):
        x = self.conv1(x)
        return self.conv3(torch.relu(x + self.conv2(torch.relu(x))))


model = Residual()
config_list = [{"sparsity": 0.75, "op_types": ["Conv2d"]}]
weights = {name: layer.weight.detach().clone() for name, layer in model.named_children()}
dummy_input = torch.randn(2, 1, 8, 8)
pruner = L1FilterPruner(model, config_list, dependency_aware=True, dummy_input=dummy_input)
pruner.compress()
fpgm = FPGMPruner(Residual(), config_list, None, True, dummy_input)
fpgm.compress()
