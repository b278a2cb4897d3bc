"""v2.10, second stack: an evaluator with a traced optimizer."""

import nni
import torch
from nni.compression.pytorch import TorchEvaluator
from nni.compression.pytorch.pruning import TaylorFOWeightPruner
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


def training_func(
    model, optimizers, criterion, lr_schedulers=None, max_steps=None, max_epochs=None
):
    runs.append((max_steps, max_epochs))
    for data, target in batches(max_steps or 4 * (max_epochs or 1)):
        optimizers.zero_grad()
        criterion(model(data), target).backward()
        optimizers.step()


runs = []
model = Net()
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.01)
evaluator = TorchEvaluator(training_func, optimizer, nn.CrossEntropyLoss())

seen = []
optimizer.register_step_pre_hook(
    lambda *_: seen.append((model.conv2.weight.grad * model.conv2.weight.detach()).square())
)
config_list = [{"sparsity": 0.5, "op_names": ["conv2"]}]
pruner = TaylorFOWeightPruner(model, config_list, evaluator, training_steps=3)
_, masks = pruner.compress()
