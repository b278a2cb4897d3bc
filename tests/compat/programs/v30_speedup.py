"""v3.0: speedup of a model under its pruner, one with nothing to cut, and grouped transposed convolutions."""

import torch
from nni.compression.pruning import L1NormPruner
from nni.compression.speedup import ModelSpeedup
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(torch.relu(self.up(torch.relu(self.conv(x)))))


model = Decoder().eval()
dummy_input = torch.randn(1, 3, 8, 8)
weight = model.conv.weight.detach().clone()
pruner = L1NormPruner(model, [{"op_names": ["conv"], "sparse_ratio": 0.5}])
_, masks = pruner.compress()
unchanged = ModelSpeedup(Decoder().eval(), dummy_input, {}).speedup_model()
same = ModelSpeedup(model, dummy_input, masks_or_file=masks, batch_size=4).speedup_model()
output = model(dummy_input)

decoder = Decoder().eval()
up = {name: value.clone() for name, value in decoder.up.state_dict().items()}
position = torch.ones(8, 4, 2, 2)
position[:, 1] = 0  # what NNI's masks say of dimension 1: a position in every group
bias = torch.tensor([1.0, 0, 1, 1, 1, 0, 1, 1])
reference = decoder.head(
    torch.relu(
        nn.functional.conv_transpose2d(
            torch.relu(decoder.conv(dummy_input)),
            up["weight"] * position,
            up["bias"] * bias,
            stride=2,
            groups=2,
        )
    )
)
ModelSpeedup(decoder, dummy_input, {"up": {"weight": position, "bias": bias}}).speedup_model()
