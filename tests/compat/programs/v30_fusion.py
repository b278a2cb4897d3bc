"""v3.0: pruning and quantization at once, by from_compressor."""

import nni
import torch
import torch.nn.functional as F
from nni.compression import TorchEvaluator
from nni.compression.pruning import AGPPruner, LevelPruner
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

pruner = LevelPruner(model, [{"op_names": ["fc"], "sparse_ratio": 0.8}], evaluator)
scheduled = AGPPruner(pruner, interval_steps=2, total_times=3)
q_config_list = [{"op_names": ["fc"], "target_names": ["weight"], "quant_dtype": "int8"}]
quantizer = QATQuantizer.from_compressor(scheduled, q_config_list, quant_start_step=2)
fused = quantizer.fused_compressors
_, calibration_config = quantizer.compress(max_steps=10, max_epochs=None)
masks = scheduled.get_masks()
raw = dict(model.named_parameters())["fc.weight"].detach().clone()
seen = model.fc.weight.detach().clone()
quantizer.unwrap_model()
kinds = {type(module) for module in model.modules()}
