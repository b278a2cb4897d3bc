"""A mask on what a layer puts out."""

from nni.compression.pruning import L1NormPruner
from torch import nn

config_list = [
    {
        "op_types": ["Conv2d"],
        "target_names": ["_output_"],  # not here
        "sparse_ratio": 0.5,
    }
]
pruner = L1NormPruner(nn.Sequential(nn.Conv2d(1, 4, 3)), config_list)  # not here
