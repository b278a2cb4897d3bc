"""v2.4: from quantization-aware training to a file for TensorRT."""

import torch
from nni.algorithms.compression.pytorch.quantization import QAT_Quantizer
from nni.compression.pytorch.quantization_speedup import ModelSpeedupTensorRT
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


model = Net()
config_list = [
    {
        "quant_types": ["weight", "input"],
        "quant_bits": {"weight": 8, "input": 8},
        "op_names": ["conv1", "conv2"],
    },
    {"quant_types": ["weight"], "quant_bits": {"weight": 8}, "op_names": ["fc"]},
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
quantizer = QAT_Quantizer(model, config_list, optimizer)
quantizer.compress()
x = torch.randn(16, 1, 8, 8)
model(x)
calibration_config = quantizer.export_model("model.pth", "calibration.pth")
model.eval()
floats = model(x).detach()

engine = ModelSpeedupTensorRT(
    model, (16, 1, 8, 8), config=calibration_config, onnx_path="trt_model.onnx", batchsize=16
)
engine.compress()
output, seconds = engine.inference(x)
