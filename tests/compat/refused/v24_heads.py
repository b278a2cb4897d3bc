"""An algorithm that is not offered yet."""

from nni.algorithms.compression.pytorch.pruning import TransformerHeadPruner  # not here
from torch import nn

rules = [{"sparsity": 0.5, "op_types": ["Linear"]}]
pruner = TransformerHeadPruner(nn.Linear(4, 4), rules)  # not here
