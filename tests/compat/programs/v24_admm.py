"""v1.5 to v2.4: ADMM with a trainer that calls back after each backward."""

import torch
from nni.algorithms.compression.pytorch.pruning import ADMMPruner
from torch import nn

epochs, rates = [], []


def trainer(model, criterion, optimizer, epoch, callback):
    epochs.append(epoch)
    rates.append(optimizer.param_groups[0]["lr"])
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        data = torch.randn(16, 8, generator=generator)
        target = torch.randint(4, (16,), generator=generator)
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        callback()
        optimizer.step()


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
config_list = [{"sparsity": 0.75, "op_types": ["Linear"], "op_names": ["0"]}]
pruner = ADMMPruner(
    model,
    config_list,
    trainer=trainer,
    num_iterations=3,
    training_epochs=2,
    row=1e-2,
    base_algo="level",
)
model = pruner.compress()
