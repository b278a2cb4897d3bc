"""v2.5 to v2.10, second stack: a lottery ticket whose rounds run in compress()."""

import torch
from nni.compression.pytorch.pruning import LotteryTicketPruner
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
first = model[0].weight.detach().clone()
zeros, kept = [], []


def finetuner(model):
    weight = model[0].weight
    zeros.append(int((weight == 0).sum()))
    kept.append(bool((weight == first)[weight != 0].all()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    (model(torch.randn(32, 8)) - 1).square().mean().backward()
    optimizer.step()


config_list = [{"sparsity": 0.6, "op_types": ["Linear"]}]
pruner = LotteryTicketPruner(model, config_list, "level", 3, finetuner=finetuner, reset_weight=True)
pruner.compress()
_, model, masks, _, _ = pruner.get_best_result()
