"""v1.1: the constructor takes the config list, compress() the model."""

import torch
from nni.compression.torch import LevelPruner
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


model = Net()
before = {name: value.clone() for name, value in model.state_dict().items()}
pruner = LevelPruner([{"sparsity": 0.8, "op_types": ["default"]}])
pruner.compress(model)
