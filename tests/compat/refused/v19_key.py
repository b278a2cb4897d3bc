"""A key that the class does not read."""

from nni.compression.torch import LevelPruner
from torch import nn

LevelPruner(  # not here
    nn.Linear(8, 4),
    [{"sparsity": 0.5, "op_types": ["Linear"], "quant_bits": 8}],  # not here
)
