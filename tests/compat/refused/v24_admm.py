"""An algorithm that is not offered yet."""

from nni.algorithms.compression.pytorch.pruning import ADMMPruner  # not here
from torch import nn

pruner = ADMMPruner(nn.Linear(4, 4), [{"sparsity": 0.5, "op_types": ["Linear"]}])  # not here
