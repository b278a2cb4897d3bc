"""v3.0: quantization-aware training inside compress()."""

import nni
import torch
import torch.nn.functional as F
from nni.compression import TorchEvaluator
from nni.compression.quantization import QATQuantizer
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


def training_step(batch, model):
    data, target = batch
    return F.cross_entropy(model(data), target)


def training_func(model, optimizer, training_step, lr_scheduler, max_steps, max_epochs):
    runs.append((max_steps, max_epochs))
    for batch in batches(max_steps or 4 * max_epochs):
        optimizer.zero_grad()
        training_step(batch, model).backward()
        optimizer.step()


runs = []
model = Net()
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.01)
evaluator = TorchEvaluator(training_func, optimizer, training_step)

config_list = [
    {
        "op_types": ["Linear"],
        "target_names": ["_input_", "weight", "_output_"],
        "quant_dtype": "int8",
        "granularity": "default",
    }
]
quantizer = QATQuantizer(model, config_list, evaluator, quant_start_step=2)
_, calibration_config = quantizer.compress(max_steps=6, max_epochs=None)
raw = dict(model.named_parameters())["fc.weight"].detach().clone()
seen = model.fc.weight.detach().clone()
