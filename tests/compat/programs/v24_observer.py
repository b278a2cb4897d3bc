"""v2.4: quantization without training; what the model is run on before compress() calibrates it."""

import torch
from nni.algorithms.compression.pytorch.quantization import ObserverQuantizer
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
config_list = [
    {
        "quant_types": ["weight", "input"],
        "quant_bits": {"weight": 8, "input": 8},
        "op_names": ["conv1", "conv2"],
    },
    {"quant_types": ["weight"], "quant_bits": {"weight": 8}, "op_names": ["fc"]},
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
quantizer = ObserverQuantizer(model, config_list, optimizer)
data = [torch.randn(16, 1, 8, 8) for _ in range(3)]
with torch.no_grad():
    floats = [model(x) for x in data]
quantizer.compress()
with torch.no_grad():
    quantized = model(data[0])
calibration_config = quantizer.export_model("model.pth", "calibration.pth")
