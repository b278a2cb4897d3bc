"""v2.10, second stack: AGP in four iterations with a finetuner."""

import torch
from nni.compression.pytorch.pruning import AGPPruner
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
config_list = [{"sparsity": 0.75, "op_types": ["Conv2d"]}]
zeros = []


def finetuner(model):
    zeros.append(int((model.conv2.weight == 0).flatten(1).all(1).sum()))


pruner = AGPPruner(model, config_list, "l1", 4, finetuner=finetuner)
pruner.compress()
_, best, masks, _, _ = pruner.get_best_result()
