"""v1.9: masks in a file of any name, applied to another copy of the model."""

from pathlib import Path

import torch
from nni.compression.torch import L1FilterPruner, apply_compression_results
from nni.compression.torch.utils.counter import count_flops_params
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
config_list = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
pruner = L1FilterPruner(model, config_list)
pruner.compress()
folder = Path("experiment_data")
folder.mkdir()
pruner.export_model(folder / "model", mask_path=folder / "mask")
flops, params = count_flops_params(model, (1, 1, 8, 8), verbose=False)

torch.manual_seed(1)
other = Net().eval()
before = {name: value.clone() for name, value in other.state_dict().items()}
apply_compression_results(other, "experiment_data/mask", "cpu")
masks = torch.load("experiment_data/mask")
loaded = Net().eval()
loaded.load_state_dict(torch.load("experiment_data/model"))
x = torch.randn(2, 1, 8, 8)
same = torch.equal(loaded(x), model(x))
