"""A compressed model in a search for hyperparameters, which is not model compression."""

import nni
from nni.compression.torch import LevelPruner
from torch import nn

model = nn.Linear(8, 4)
LevelPruner(model, [{"sparsity": 0.5, "op_types": ["default"]}]).compress()
nni.report_final_result(0.9)  # not here
