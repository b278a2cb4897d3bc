"""v3.0: prune, unwrap, cut."""

import torch
from nni.compression.pruning import L1NormPruner
from nni.compression.speedup import ModelSpeedup
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


model = Net().eval()
before = model.conv1.weight.detach().clone()
config_list = [{"op_types": ["Conv2d"], "sparse_ratio": 0.5, "exclude_op_names": ["conv2"]}]
pruner = L1NormPruner(model, config_list)
_, masks = pruner.compress()
pruner.unwrap_model()
ModelSpeedup(model, torch.rand(3, 1, 8, 8), masks).speedup_model()
