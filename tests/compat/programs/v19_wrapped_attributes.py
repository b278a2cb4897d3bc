"""v1.9: what a wrapped layer and its wrapper can be asked."""

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
pruner = LevelPruner(model, [{"sparsity": 0.5, "op_types": ["Conv2d"]}])
pruner.compress()
layer = model.conv1
asked = {
    "name": layer.name,
    "sparsity": layer.config["sparsity"],
    "is its module": layer.module is model.conv1,
    "zeros": int((layer.weight_mask == 0).sum()),
    "bias mask": layer.bias_mask,
    "calculated": layer.if_calculated,
    "weight": layer.module.weight.shape,
}
missing = hasattr(model.fc, "weight_mask")
