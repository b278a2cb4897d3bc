"""v3's SlimPruner, which trained factors beside the weights."""

import torch
from nni.compression import TorchEvaluator
from nni.compression.pruning import SlimPruner
from torch import nn

model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
evaluator = TorchEvaluator(print, optimizer)
config_list = [{"op_types": ["BatchNorm2d"], "sparse_ratio": 0.5}]
pruner = SlimPruner(model, config_list, evaluator, training_steps=100)  # not here
