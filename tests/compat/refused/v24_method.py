"""A method that pruners do not have."""

from nni.algorithms.compression.pytorch.pruning import LevelPruner
from torch import nn

pruner = LevelPruner(nn.Linear(8, 4), [{"sparsity": 0.5, "op_types": ["default"]}])
pruner.compress()
pruner.export_report("report.json")  # not here
