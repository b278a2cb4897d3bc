"""Counted costs against networks that are really cut."""

import copy

import numpy as np
import pytest
import torch
from digits_search import Net
from torch import nn

from lilliput.search.costs import Counts
from lilliput.search.solve import total
from lilliput.search.space import Space
from lilliput.torch import L1NormPruner, measure, speedup


class Joined(nn.Module):
    """A concatenation of three, so that one weight is touched by four decisions."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(3, 8, 3, padding=1) for _ in range(3))
        self.mixed = nn.Conv2d(24, 8, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        joined = torch.cat([torch.relu(part(x)) for part in self.parts], 1)
        return self.head(torch.relu(self.mixed(joined)).mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "shape"), [(Net, (2, 1, 8, 8)), (Joined, (3, 3, 6, 6))], ids=["residual", "joined"]
)
def test_parameters_and_macs_are_those_of_the_cut_network(make, shape):
    model, x = make(), torch.zeros(shape)
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5]}}]
    space = Space(model, rules, x)
    counts, rng = Counts(space), np.random.default_rng(0)
    parameters, macs = counts.parameters(), counts.macs()
    for _ in range(4):
        choice = tuple(int(rng.integers(n)) for n in space.sizes)
        cut = copy.deepcopy(model)
        if space.pruning(choice):
            cut = L1NormPruner(cut, space.pruning(choice), example_inputs=x).compress()
            cut = speedup(cut, x).model
        figures = measure(cut, x, runs=0)
        assert (total(parameters, choice), total(macs, choice)) == (
            figures.parameters,
            figures.macs,
        )


def test_bits_are_averaged_over_the_weights_that_are_left():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(2, 4)
    rules = [
        {"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}, "quant_bits": {"choose": [4, 8]}}
    ]
    counts = Counts(Space(model, rules, x))
    # half of the first layer's 32 weights at 8 bits, half of the second one's 16 at 4
    assert counts.average_bits((1, 0, 1)) == (16 * 8 + 8 * 4) / 24
    above = total(counts.bits_above(6.0), (1, 0, 1))
    assert above == 16 * 2 - 8 * 2
    assert total(counts.bytes(), (1, 0, 1)) == 16 + 8 + 4 * (4 + 2)
