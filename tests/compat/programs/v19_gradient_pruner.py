"""v1.9: a mask from the gradient, read off the module in calc_mask."""

import torch
import torch.nn.functional as F
from nni.compression.torch import Pruner
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


class GradientPruner(Pruner):
    def __init__(self, model, config_list, optimizer):
        super().__init__(model, config_list, optimizer)
        self.set_wrappers_attribute("if_calculated", False)

    def calc_mask(self, wrapper, wrapper_idx=None):
        weight = wrapper.module.weight
        if wrapper.if_calculated or weight.grad is None:
            return None
        score = (weight * weight.grad).abs()
        count = int(weight.numel() * wrapper.config["sparsity"])
        threshold = torch.topk(score.view(-1), count, largest=False)[0].max()
        wrapper.if_calculated = isinstance(weight, nn.Parameter)
        return {"weight_mask": torch.gt(score, threshold).type_as(weight)}


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
pruner = GradientPruner(model, [{"sparsity": 0.5, "op_types": ["Linear"]}], optimizer)
pruner.compress()
data, target = next(batches(1))
F.cross_entropy(model(data), target).backward()
score = (model.fc.weight * model.fc.weight.grad).abs().detach().clone()
optimizer.step()
