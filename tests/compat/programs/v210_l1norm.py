"""v2.10, second stack: compress() returns the masks, which the speedup takes."""

import torch
from nni.compression.pytorch.pruning import L1NormPruner
from nni.compression.pytorch.speedup import ModelSpeedup
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
before = model.conv2.weight.detach().clone()
config_list = [
    {"sparsity_per_layer": 0.5, "op_types": ["Conv2d"]},
    {"exclude": True, "op_names": ["fc"]},
]
pruner = L1NormPruner(model, config_list)
_, masks = pruner.compress()
sparsity = {
    name: 1 - float(mask["weight"].sum()) / mask["weight"].numel() for name, mask in masks.items()
}
wrapper = pruner.get_modules_wrapper()["conv2"]
counts = pruner.show_pruned_weights()
pruner._unwrap_model()
kinds = {type(module) for module in model.modules()}
ModelSpeedup(model, torch.rand(3, 1, 8, 8), masks).speedup_model()
