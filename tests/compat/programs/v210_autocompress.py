"""v2.5 to v2.10, second stack: AutoCompress with a trainer for ADMM and a finetuner after each round."""

import nni
import torch
from nni.compression.pytorch.pruning import AutoCompressPruner
from torch import nn
from trained_digits import loaders, test_accuracy, train, trained

train_loader, val_loader = loaders()
model = trained()
epochs, left = [], []


def trainer(model, optimizer, criterion):
    epochs.append(1)
    train(model, optimizer, criterion, train_loader)


def finetuner(model):
    left.append(
        sum(int(layer.weight.count_nonzero()) for layer in (model.conv1, model.conv2, model.conv3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, nn.CrossEntropyLoss(), train_loader)


def evaluator(model):
    return test_accuracy(model, val_loader)


config_list = [{"total_sparsity": 0.75, "op_types": ["Conv2d"]}]
admm_params = {
    "trainer": trainer,
    "traced_optimizer": nni.trace(torch.optim.Adam)(model.parameters(), lr=1e-3),
    "criterion": nn.CrossEntropyLoss(),
    "iterations": 2,
    "training_epochs": 1,
}
sa_params = {"evaluator": evaluator, "cool_down_rate": 0.4}
pruner = AutoCompressPruner(
    model, config_list, 2, admm_params, sa_params, finetuner=finetuner, evaluator=evaluator
)
pruner.compress()
_, model, masks, score, _ = pruner.get_best_result()
