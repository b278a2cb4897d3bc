"""Branches that chance takes: refused before anything is cut, or of no consequence."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.chance import drawn_from, kinds_of_luck
from lilliput.torch import L1NormPruner, speedup


class Branching(nn.Module):
    """One of two convolutions, hardly ever the second."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.often, self.seldom = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.seldom(x) if self.draw(self.training) else self.often(x)
        return self.head(torch.relu(x).mean((2, 3)))


def pruned(draw):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model, x = Branching(draw).eval(), torch.randn(2, 3, 8, 8)
    rules = [{"op_names": ["stem", "often"], "sparsity": 0.5}]
    return L1NormPruner(model, rules, example_inputs=x).compress(), x


def everything(model):
    return {name: (type(m), str(m)) for name, m in model.named_modules()}, model.state_dict()


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda training: random.random() < 1e-6, "random"),
        (lambda training: random.random() > 1 - 1e-6, "random"),
        (lambda training: np.random.rand() < 1e-6, "numpy.random"),
        (lambda training: random.gauss(0, 1) > 6, "random"),
    ],
)
def test_a_branch_that_chance_takes_is_refused_and_nothing_is_cut(draw, name):
    model, x = pruned(draw)
    modules, values = everything(model)
    with pytest.raises(
        UnsupportedModelError, match=rf"Branching draws from .*{name}.*in evaluation"
    ):
        speedup(model, x)
    now, after = everything(model)
    assert now == modules
    assert all(torch.equal(after[key], value) for key, value in values.items())


@pytest.mark.parametrize(
    "draw",
    [
        lambda training: random.random() < 0.5 and training,
        lambda training: np.random.randn() > 0 and training,
        lambda training: training and random.random() < 0.5,
    ],
)
def test_numbers_that_change_nothing_in_evaluation_do_no_harm(draw):
    model, x = pruned(draw)
    result = speedup(model, x)
    assert result.model.often.out_channels == 4


def test_a_model_that_fails_after_its_check_is_named():
    own = random.Random(3)  # nobody else knows what it will draw
    draws = iter([False] * 40)
    model, x = pruned(lambda training: next(draws, own.random() < 2))
    with pytest.raises(UnsupportedModelError, match="Branching passed its check and failed when"):
        speedup(model, x)


def test_luck_is_extreme_and_ends():
    held = random.getstate()
    found = [(random.random(), np.random.rand(), random.normalvariate()) for _ in kinds_of_luck()]
    assert found[0][:2] == (0.0, 0.0)
    assert found[1][0] > 1 - 1e-9 and found[1][1] > 1 - 1e-9
    assert len({x[0] for x in found}) == 5
    assert random.getstate() == held


def test_what_was_drawn_from_is_named():
    assert drawn_from(lambda: torch.rand(3)) == ""
    assert drawn_from(random.random) == "random"
    assert drawn_from(np.random.rand) == "numpy.random"
