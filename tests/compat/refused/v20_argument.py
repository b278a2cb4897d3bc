"""A constructor with an argument that no version had."""

from nni.algorithms.compression.pytorch.pruning import L1FilterPruner
from torch import nn

config_list = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
pruner = L1FilterPruner(nn.Conv2d(1, 4, 3), config_list, None, False, None, "extra")  # not here
