"""v2.5 to v2.10, second stack: ADMM on whole filters."""

import nni
import torch
from nni.compression.pytorch.pruning import ADMMPruner
from torch import nn


def trainer(model, optimizer, criterion):
    calls.append(float((model[0].weight == 0).sum()))
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
        optimizer.step()


calls = []
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
traced_optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.1)
config_list = [{"sparsity": 0.5, "op_types": ["Linear"], "op_names": ["0"]}]
pruner = ADMMPruner(
    model,
    config_list,
    trainer,
    traced_optimizer,
    nn.CrossEntropyLoss(),
    iterations=3,
    training_epochs=2,
    granularity="coarse-grained",
)
_, masks = pruner.compress()
