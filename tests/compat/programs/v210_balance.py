"""v2.10, second stack: level pruning with as many weights kept in every block."""

from nni.compression.pytorch.pruning import LevelPruner
from torch import nn

model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
before = model[0].weight.detach().clone()
config_list = [{"sparsity": 0.5, "op_names": ["0"]}]
pruner = LevelPruner(model, config_list, mode="balance", balance_gran=[4])
_, masks = pruner.compress()
