"""v2.0: DoReFa weights."""

import torch
import torch.nn.functional as F
from nni.algorithms.compression.pytorch.quantization import DoReFaQuantizer
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


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data = torch.randn(16, 1, 8, 8, generator=generator)
        yield data, torch.randint(10, (16,), generator=generator)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
config_list = [{"quant_types": ["weight"], "quant_bits": {"weight": 4}, "op_types": ["Conv2d"]}]
quantizer = DoReFaQuantizer(model, config_list, optimizer)
quantizer.compress()
for data, target in batches(3):
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
