"""v1.5 to v2.6, first stack: NetAdapt with a short fine-tuning after each step."""

import torch
from nni.compression.torch import NetAdaptPruner
from torch import nn
from trained_digits import loaders, test_accuracy, train, trained

train_loader, val_loader = loaders()
model = trained()
tuned, scores = [], []


def short_term_fine_tuner(model, epochs=1):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        train(model, optimizer, nn.CrossEntropyLoss(), train_loader)
    tuned.append(model.training)


def evaluator(model):
    scores.append(test_accuracy(model, val_loader))
    return scores[-1]


config_list = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
pruner = NetAdaptPruner(
    model,
    config_list,
    short_term_fine_tuner=short_term_fine_tuner,
    evaluator=evaluator,
    base_algo="l1",
    sparsity_per_iteration=0.15,
    experiment_data_dir="experiment",
)
before = evaluator(model)
model = pruner.compress()
after = evaluator(model)
pruner.export_model(model_path="pruned.pth", mask_path="mask.pth")
