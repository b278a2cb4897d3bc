"""v1.9: quantization-aware training, weights and outputs."""

import torch
import torch.nn.functional as F
from nni.compression.torch import QAT_Quantizer
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
before = {key: value.clone() for key, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
config_list = [
    {
        "quant_types": ["weight", "output"],
        "quant_bits": {"weight": 8, "output": 8},
        "op_types": ["Conv2d", "Linear"],
    }
]
quantizer = QAT_Quantizer(model, config_list, optimizer)
quantizer.compress()
losses = []
for _ in range(8):
    for data, target in batches(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
