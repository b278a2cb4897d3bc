"""v1.9: batch-norm scales, ranked over all layers together."""

import torch
from nni.compression.torch import SlimPruner
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
for bn in (model.bn1, model.bn2):
    nn.init.uniform_(bn.weight, 0.1, 1.0)
gammas = torch.cat([model.bn1.weight.detach().clone(), model.bn2.weight.detach().clone()])
pruner = SlimPruner(model, [{"sparsity": 0.5, "op_types": ["BatchNorm2d"]}])
model = pruner.compress()
