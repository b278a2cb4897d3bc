"""v3.0: a second pruner on top of a quantizer and another pruner."""

import nni
import torch
import torch.nn.functional as F
from nni.compression import TorchEvaluator
from nni.compression.pruning import L1NormPruner, TaylorPruner
from nni.compression.quantization import LsqQuantizer
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
    model.train()
    for batch in batches(max_steps or 4 * max_epochs):
        optimizer.zero_grad()
        training_step(batch, model).backward()
        optimizer.step()


runs = []
model = Net()
before = {key: value.clone() for key, value in model.state_dict().items()}
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.05)
evaluator = TorchEvaluator(training_func, optimizer, training_step)

first = L1NormPruner(model, [{"op_names": ["conv1"], "sparse_ratio": 0.5}])
first.compress()
q_config_list = [{"op_names": ["fc"], "target_names": ["weight"], "quant_dtype": "int8"}]
quantizer = LsqQuantizer.from_compressor(first, q_config_list, evaluator=evaluator)
seen = []
optimizer.register_step_pre_hook(
    lambda *_: seen.append((model.conv2.weight.grad * model.conv2.weight.detach()).square())
)
pruner = TaylorPruner.from_compressor(quantizer, [{"op_names": ["conv2"], "sparse_ratio": 0.5}], 3)
_, masks = pruner.compress(max_steps=5, max_epochs=None)
