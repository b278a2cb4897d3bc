"""v2.10: FLOPs and parameters before and after, in the default and in the full mode."""

import torch
from nni.compression.pytorch.pruning import L1NormPruner
from nni.compression.pytorch.speedup import ModelSpeedup
from nni.compression.pytorch.utils import count_flops_params
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


def count_norm(module, inputs, output):
    return {"flops": 7, "params": 0, "weight_shape": ()}


model = Net().eval()
dummy_input = torch.randn(1, 1, 8, 8)
before = count_flops_params(model, dummy_input)
full = count_flops_params(model, (dummy_input,), mode="full", verbose=False)
custom = count_flops_params(
    model, dummy_input, custom_ops={nn.BatchNorm2d: count_norm}, verbose=False
)
pruner = L1NormPruner(model, [{"sparsity_per_layer": 0.5, "op_names": ["conv1"]}])
_, masks = pruner.compress()
masked = count_flops_params(model, dummy_input, verbose=False)
pruner._unwrap_model()
ModelSpeedup(model, dummy_input, masks).speedup_model()
after = count_flops_params(model, dummy_input, verbose=False)
