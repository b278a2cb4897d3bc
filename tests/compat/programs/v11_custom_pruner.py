"""v1.1: a pruner whose calc_mask gets the weight, the config and the op."""

import torch
from nni.compression.torch import Pruner
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


class MyPruner(Pruner):
    def __init__(self, config_list):
        super().__init__(config_list)
        self.seen = []

    def calc_mask(self, weight, config, op, op_type, op_name, **kwargs):
        self.seen.append((op_type, op_name, op.weight.shape == weight.shape))
        threshold = weight.abs().flatten().kthvalue(int(weight.numel() * config["sparsity"])).values
        return (weight.abs() > threshold).type_as(weight)


model = Net()
before = {name: value.clone() for name, value in model.state_dict().items()}
pruner = MyPruner([{"sparsity": 0.25, "op_types": ["Conv2d"]}])
pruner.compress(model)
