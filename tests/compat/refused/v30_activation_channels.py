"""A scale for each channel of an activation."""

import torch
from nni.compression import TorchEvaluator
from nni.compression.quantization import QATQuantizer
from torch import nn

model = nn.Sequential(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
evaluator = TorchEvaluator(lambda *_: None, optimizer, None)
config_list = [
    {
        "op_types": ["Linear"],
        "target_names": ["_output_"],
        "quant_dtype": "int8",
        "granularity": "per_channel",  # not here
    }
]
quantizer = QATQuantizer(model, config_list, evaluator)  # not here
