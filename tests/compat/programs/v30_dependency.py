"""v3.0: a residual network, whose dependencies are found, pruned and cut out."""

import torch
from nni.compression.pruning import L1NormPruner
from nni.compression.speedup import ModelSpeedup
from nni.compression.utils import auto_set_denpendency_group_ids
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.block = Block(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))


model = Net().eval()
before = {key: value.clone() for key, value in model.state_dict().items()}
dummy_input = torch.rand(8, 3, 16, 16)
norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
config_list = [
    {"op_types": ["Conv2d"], "sparse_ratio": 0.5},
    *[
        {
            "op_names": [name],
            "target_names": ["_output_"],
            "target_settings": {
                "_output_": {
                    "align": {
                        "module_name": name.replace("bn", "conv"),
                        "target_name": "weight",
                        "dims": [0],
                    },
                    "granularity": "per_channel",
                }
            },
        }
        for name in norms
    ],
]
config_list = auto_set_denpendency_group_ids(model, config_list, dummy_input)
pruner = L1NormPruner(model, config_list)
_, masks = pruner.compress()
masked_output = model(dummy_input).detach()
pruner.unwrap_model()
model = ModelSpeedup(model, dummy_input, masks).speedup_model()
output = model(dummy_input).detach()
