"""Which views are channel shuffles."""

import torch
from torch import nn

from lilliput.torch import channel_groups


def test_a_view_that_only_adds_a_dimension_is_not_a_shuffle():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.read = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.make(x).relu()
            return self.read(h.view(len(h), 8, 1).transpose(1, 2).reshape(len(h), 8))

    (group,) = channel_groups(Turned(), torch.randn(2, 6))
    assert group.size == 8
