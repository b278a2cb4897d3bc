"""An algorithm that is not offered yet."""

from nni.algorithms.compression.pytorch.pruning import AMCPruner  # not here
from torch import nn

pruner = AMCPruner(nn.Linear(4, 4), [{"sparsity": 0.5, "op_types": ["Linear"]}])  # not here
