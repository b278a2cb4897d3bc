"""v2.6 to v2.10, second stack: AMC under a share of the operations; it cuts."""

import torch
from nni.compression.pytorch.pruning import AMCPruner
from nni.compression.pytorch.utils import count_flops_params
from torch import nn
from trained_digits import loaders, test_accuracy, train, trained

train_loader, val_loader = loaders()
given = model = trained()
dummy_input = torch.rand(4, 1, 8, 8)
pre_flops, pre_params, rows = count_flops_params(model, dummy_input)


def finetuner(model):
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss(), train_loader)


def evaluator(model):
    return test_accuracy(model, val_loader)


config_list = [{"op_types": ["Conv2d"], "total_sparsity": 0.5, "max_sparsity_per_layer": 0.8}]
ddpg_params = {"hidden1": 300, "hidden2": 300, "warmup": 100}
pruner = AMCPruner(
    4,
    model,
    config_list,
    dummy_input,
    evaluator,
    finetuner=finetuner,
    ddpg_params=ddpg_params,
    target="flops",
)
pruner.compress()
_, model, masks, best_acc, _ = pruner.get_best_result()
flops, params, _ = count_flops_params(model, dummy_input)
