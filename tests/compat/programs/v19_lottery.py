"""v1.2 to v2.4: a lottery ticket in three rounds, each started by the user."""

import torch
from nni.compression.torch import LotteryTicketPruner
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
first = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
config_list = [{"prune_iterations": 3, "sparsity": 0.6, "op_types": ["default"]}]
pruner = LotteryTicketPruner(
    model, config_list, optimizer, lr_scheduler=scheduler, reset_weights=True
)
pruner.compress()

rounds, zeros, kept, epochs_seen = list(pruner.get_prune_iterations()), [], [], []
for _ in pruner.get_prune_iterations():
    pruner.prune_iteration_start()
    weight = model[0].weight
    zeros.append(int((weight == 0).sum()))
    kept.append(
        bool((weight == first[0])[weight != 0].all()) and bool((model[0].bias == first[1]).all())
    )
    epochs_seen.append(scheduler.last_epoch)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(32, 8)) - 1).square().mean().backward()
        optimizer.step()
        scheduler.step()
