"""v2.5 to v2.10, second stack: simulated annealing with an evaluator that fine-tunes, then a speedup."""

import nni
import torch
from nni.compression.pytorch import TorchEvaluator
from nni.compression.pytorch.pruning import SimulatedAnnealingPruner
from torch import nn
from trained_digits import loaders, test_accuracy, train, trained

train_loader, val_loader = loaders()
model = trained()
scores = []


def training_func(
    model, optimizers, criterion, lr_schedulers=None, max_steps=None, max_epochs=None
):
    train(model, optimizers, criterion, train_loader)


def evaluating_func(model):
    scores.append(test_accuracy(model, val_loader))
    return scores[-1]


traced_optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.01, momentum=0.9)
dummy_input = torch.rand(2, 1, 8, 8)
evaluator = TorchEvaluator(
    training_func,
    traced_optimizer,
    nn.CrossEntropyLoss(),
    dummy_input=dummy_input,
    evaluating_func=evaluating_func,
)
config_list = [{"total_sparsity": 0.5, "max_sparsity_per_layer": 0.8, "op_types": ["Conv2d"]}]
pruner = SimulatedAnnealingPruner(
    model, config_list, evaluator, cool_down_rate=0.4, pruning_algorithm="l1", speedup=True
)
pruner.compress()
_, model, masks, best_score, best_config_list = pruner.get_best_result()
