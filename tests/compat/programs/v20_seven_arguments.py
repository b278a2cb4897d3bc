"""v2.x: quant_backward with scale, zero point and the ends of the grid."""

import torch
from nni.compression.pytorch.compressor import QuantGrad, Quantizer, QuantType
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


class ClipGrad(QuantGrad):
    seen = []

    @staticmethod
    def quant_backward(tensor, grad_output, quant_type, scale, zero_point, qmin, qmax):
        ClipGrad.seen.append((quant_type, scale, zero_point, qmin, qmax))
        if quant_type == QuantType.OUTPUT:
            grad_output[torch.abs(tensor) > 1] = 0
        return grad_output


class MyQuantizer(Quantizer):
    def __init__(self, model, config_list, optimizer=None):
        super().__init__(model, config_list, optimizer)
        self.quant_grad = ClipGrad.apply
        for wrapper in self.get_modules_wrapper():
            wrapper.module.register_buffer("scale", torch.tensor([0.5]))
            wrapper.module.register_buffer("zero_point", torch.tensor([3.0]))

    def quantize_output(self, output, wrapper, **kwargs):
        return torch.round(output * 2) / 2

    def quantize_weight(self, wrapper, **kwargs):
        return torch.round(wrapper.module.weight * 2) / 2


model = nn.Linear(6, 4)
nn.init.normal_(model.weight)
rule = {"quant_types": ["output", "weight"], "quant_bits": {"output": 4, "weight": 8}}
MyQuantizer(model, [{**rule, "op_types": ["Linear"]}]).compress()
x, grad = torch.randn(20, 6, requires_grad=True), torch.randn(20, 4)
model(x).backward(grad)
