"""v2.x: quantization-aware training, the calibration file, and back into another model."""

import torch
import torch.nn.functional as F
from nni.algorithms.compression.pytorch.quantization import QAT_Quantizer
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


config_list = [
    {
        "quant_types": ["input", "weight"],
        "quant_bits": {"input": 8, "weight": 8},
        "op_types": ["Conv2d"],
    },
    {
        "quant_types": ["weight", "output"],
        "quant_bits": {"weight": 8, "output": 8},
        "op_names": ["fc"],
    },
]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
quantizer = QAT_Quantizer(model, config_list, optimizer)
quantizer.compress()
for data, target in batches(4):
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
model.eval()
x = torch.randn(4, 1, 8, 8)
before = model(x).detach()
calibration_config = quantizer.export_model("model.pth", "calibration.pth")
kinds = [type(module) for module in model.modules()]

again = Net()
again.load_state_dict(torch.load("model.pth"))
again.eval()
plain = again(x).detach()
quantizer = QAT_Quantizer(again, config_list, torch.optim.SGD(again.parameters(), lr=0.05))
quantizer.compress()
quantizer.load_calibration_config(torch.load("calibration.pth"))
after = again(x).detach()
