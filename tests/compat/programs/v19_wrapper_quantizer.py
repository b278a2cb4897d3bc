"""v1.9: quantize_weight(wrapper) as it was really called, with old_weight."""

import torch
import torch.nn.functional as F
from nni.compression.torch import Quantizer
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


class MyQuantizer(Quantizer):
    def quantize_weight(self, wrapper, **kwargs):
        weight = wrapper.module.old_weight.data
        scale = weight.abs().max() / 127
        weight = torch.round(weight / scale) * scale
        wrapper.module.weight = weight
        return weight

    def quantize_output(self, output, wrapper, **kwargs):
        return torch.round(output * 16) / 16


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config_list = [{"quant_types": ["weight", "output"], "quant_bits": 8, "op_types": ["Linear"]}]
quantizer = MyQuantizer(model, config_list, optimizer)
quantizer.compress()
raw = dict(model.named_parameters())["fc.weight"]
before = raw.detach().clone()
data, target = next(batches(1))
features = []
model.fc.register_forward_pre_hook(lambda module, args: features.append(args[0].detach()))
output = model(data)
output.retain_grad()
F.cross_entropy(output, target).backward()
gradient, bias = raw.grad.clone(), model.fc.bias.detach().clone()
optimizer.step()
