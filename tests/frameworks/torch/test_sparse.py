"""Embeddings with sparse gradients: what the optimizer remembers is sparse as well."""

import pytest
import torch
from torch import nn

from lilliput.torch import LevelPruner, TaylorFOWeightPruner


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(11)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("again", [False, True])
def test_momentum_of_pruned_rows_is_forgotten(again):
    model, optimizer = make()
    if not again:
        train(model, optimizer)  # there is momentum before there are masks
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    train(model, optimizer)
    pruner.load_state(pruner.state())
    mask = pruner.get_wrappers()[0].weight_mask
    (momentum,) = optimizer.state[pruner.get_wrappers()[0].weight].values()
    assert momentum.is_sparse and not momentum.to_dense()[mask == 0].any()
    assert momentum.to_dense()[mask == 1].any()
    train(model, optimizer)
    assert not pruner.strip()[0].weight[mask == 0].any()


def test_channels_are_scored_by_sparse_gradients_as_by_dense_ones():
    removed = []
    for sparse in (True, False):
        model, _ = make()
        model[0].sparse = sparse
        rules = [{"op_types": ["Embedding", "Linear"], "sparsity": 0.5}]
        pruner = TaylorFOWeightPruner(model, rules)
        pruner.compress()
        pruner.calibrate([torch.arange(11)], lambda m, x: m(x).square().mean())
        removed.append([w.weight_mask.clone() for w in pruner.get_wrappers()])
    assert all(map(torch.equal, *removed))
