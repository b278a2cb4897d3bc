"""v2.10: which layers lose channels together, and masks that agree."""

import torch
from nni.compression.pytorch.utils import not_safe_to_prune
from nni.compression.pytorch.utils.mask_conflict import fix_mask_conflict
from nni.compression.pytorch.utils.shape_dependency import ChannelDependency, GroupDependency
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 4, 1)
        self.right = nn.Conv2d(8, 4, 1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2, padding=1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(x + self.conv3(torch.relu(self.conv2(x))))
        x = torch.cat([self.left(x), self.right(x)], 1)
        return self.fc(torch.relu(self.grouped(x)).mean((2, 3)))


model = Net().eval()
dummy_input = torch.randn(1, 3, 8, 8)
channel_depen = ChannelDependency(model, dummy_input)
channel_depen.export("dependency.csv")
group_depen = GroupDependency(model, dummy_input)
unsafe = not_safe_to_prune(model, dummy_input)

removed = {"conv1": [0, 1, 2], "conv3": [1, 2, 3], "conv2": [5], "grouped": [0, 1, 6]}
masks = {}
for name, channels in removed.items():
    module = getattr(model, name)
    masks[name] = {"weight": torch.ones_like(module.weight), "bias": torch.ones_like(module.bias)}
    masks[name]["weight"][channels] = 0
    masks[name]["bias"][channels] = 0
torch.save(masks, "masks.pth")
fixed_mask = fix_mask_conflict("masks.pth", model, dummy_input)
