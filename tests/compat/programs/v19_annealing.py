"""v1.5 to v2.6, first stack: simulated annealing over single weights."""

import torch
from nni.compression.torch import SimulatedAnnealingPruner
from trained_digits import loaders, test_accuracy, trained

_, val_loader = loaders()
model = trained()
state = {name: value.clone() for name, value in model.state_dict().items()}
scores = []


def evaluator(model):
    scores.append(test_accuracy(model, val_loader))
    return scores[-1]


config_list = [{"sparsity": 0.9, "op_types": ["default"]}]
pruner = SimulatedAnnealingPruner(
    model,
    config_list,
    evaluator=evaluator,
    base_algo="level",
    start_temperature=100,
    stop_temperature=20,
    cool_down_rate=0.7,
    experiment_data_dir="./",
)
model = pruner.compress()
found = evaluator(model)
pruner.export_model(model_path="pruned.pth", mask_path="mask.pth")
masks = torch.load("mask.pth")
