"""v1.9: prune filters, export, and cut them out by the file of masks."""

import torch
from nni.compression.torch import L1FilterPruner, ModelSpeedup
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
before = {name: value.clone() for name, value in model.state_dict().items()}
config_list = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
pruner = L1FilterPruner(model, config_list)
model = pruner.compress()
pruner.export_model(model_path="pruned.pth", mask_path="mask.pth")

masks = torch.load("mask.pth")
pruned = torch.load("pruned.pth")
model = Net().eval()
model.load_state_dict(pruned)
dummy_input = torch.randn(2, 1, 8, 8)
m_speedup = ModelSpeedup(model, dummy_input, "mask.pth")
m_speedup.speedup_model()
