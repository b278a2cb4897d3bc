"""Modes are restored by the methods that modules have for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lilliput.frameworks.torch.flow import record_flow
from lilliput.frameworks.torch.modes import evaluating
from lilliput.frameworks.torch.statistics import Snapshot, run
from lilliput.torch import measure


class Merging(nn.Linear):
    """Adds an adapter to its weight for evaluation, as loralib does."""

    def __init__(self, size):
        super().__init__(size, size)
        self.adapter = nn.Parameter(torch.ones(size, size) / 4)  # exact in floating point
        self.is_merged = False
        with torch.no_grad():
            self.weight.copy_(torch.arange(size * size).view(size, size) / 8)

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += self.adapter.data * (-1 if mode else 1)
            self.is_merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) + (0 if self.is_merged else x @ self.adapter.T)


class FrozenNorm(nn.Sequential):
    """Keeps its norm in evaluation."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval()
        return self


def merging():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Merging(4)), torch.randn(3, 4)


def in_snapshot(model, x):
    before = Snapshot(model)
    model.eval()
    before.restore()


USES = {
    "flow": lambda model, x: record_flow(model, lambda: model(x)),
    "run": lambda model, x: run(model, [x], None),
    "measure": lambda model, x: measure(model, x),
    "snapshot": in_snapshot,
}


@pytest.mark.parametrize("name", USES)
def test_an_adapter_is_as_it_was(name):
    model, x = merging()
    before = model[1].weight.detach().clone()
    expected = model(x)
    USES[name](model, x)
    assert model.training and model[1].training and not model[1].is_merged
    assert torch.equal(model[1].weight, before) and torch.equal(model(x), expected)


def test_a_module_in_evaluation_within_one_in_training_stays_so():
    model, _ = merging()
    model[1].eval()
    with evaluating(model):
        assert model[1].is_merged and not model.training
    assert model.training and not model[1].training and model[1].is_merged


def test_modes_that_a_module_sets_for_its_children_are_restored_one_by_one():
    model = FrozenNorm(nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[0].train()  # against its parent's will
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())


def test_what_is_in_evaluation_is_not_called():
    model, _ = merging()
    model.eval()
    model[1].train = None  # would raise
    with evaluating(model):
        pass
    assert not model[1].training
