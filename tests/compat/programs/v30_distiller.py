"""v3.0: a pruned model learns from the original, by its logits and the nearest of two layers."""

import copy

import nni
import torch
import torch.nn.functional as F
from nni.compression import TorchEvaluator
from nni.compression.distillation import DynamicLayerwiseDistiller
from nni.compression.pruning import L1NormPruner
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.fc3(x)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data = torch.randn(16, 12, generator=generator)
        yield data, torch.randint(5, (16,), generator=generator)


def training_step(batch, model):
    data, target = batch
    return F.cross_entropy(model(data), target)


def training_func(model, optimizer, training_step, lr_scheduler, max_steps, max_epochs):
    for batch in batches(max_steps):
        optimizer.zero_grad()
        loss = training_step(batch, model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def teacher_predict(batch, teacher_model):
    return teacher_model(batch[0])


losses = []
model = Net()
teacher = copy.deepcopy(model)
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.1)
evaluator = TorchEvaluator(training_func, optimizer, training_step)

pruner = L1NormPruner(model, [{"op_names": ["fc1"], "sparse_ratio": 0.5}])
_, masks = pruner.compress()
before = {key: value.detach().clone() for key, value in model.state_dict().items()}
config_list = [
    {"op_names": ["fc3"], "lambda": 0.7, "apply_method": "kl"},
    {"op_names": ["fc1"], "lambda": 0.2, "apply_method": "mse", "link": ["fc1", "fc2"]},
]
distiller = DynamicLayerwiseDistiller.from_compressor(
    pruner,
    config_list,
    teacher_model=teacher,
    teacher_predict=teacher_predict,
    origin_loss_lambda=0.4,
    evaluator=evaluator,
)
returned = distiller.compress(max_steps=6, max_epochs=None)
pruner.unwrap_model()
