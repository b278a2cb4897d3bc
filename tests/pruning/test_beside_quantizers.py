"""Pruners that need the gradients of pruned weights get them under any quantizer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.torch import (
    AGPPruner,
    BNNQuantizer,
    DoReFaQuantizer,
    LevelPruner,
    MovementPruner,
    QATQuantizer,
    Quantizer,
    RigLPruner,
)

HALF = [{"op_names": ["0"], "sparsity": 0.5}]
WEIGHTS = [{"op_names": ["0"], "quant_types": ["weight"]}]


class Shifted(Quantizer):
    """Rounds, and has no zero."""

    def quantize_weight(self, weight, config, **kwargs):
        return (weight * 64).floor() / 64 + 1 / 128


def rigl(model, optimizer):
    return RigLPruner(model, HALF, optimizer, training_steps=100, update_every=1)


def soft(model, optimizer):
    rule = {"op_names": ["0"], "initial_sparsity": 0.5, "final_sparsity": 0.5}
    return AGPPruner(model, [rule], optimizer, soft=True, hard_epoch=9)


def movement(model, optimizer):
    return MovementPruner(model, HALF, optimizer, 0, 1)


def level(model, optimizer):
    return LevelPruner(model, HALF, optimizer)


@pytest.mark.parametrize("quantizer", [None, QATQuantizer, DoReFaQuantizer, BNNQuantizer, Shifted])
@pytest.mark.parametrize(
    ("make", "name", "has_gradient"),
    [
        (rigl, "weight", True),
        (soft, "weight", True),
        (movement, "movement_score", True),
        (movement, "weight", False),
        (level, "weight", False),
    ],
)
def test_gradients_of_pruned_weights(make, name, has_gradient, quantizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, seen = {}, []
    optimizer.register_step_pre_hook(lambda *_: seen.append(held["parameter"].grad.clone()))
    pruner = make(model, optimizer)
    pruner.compress()
    if quantizer is not None:
        quantizer(model, WEIGHTS, optimizer).compress()
    wrapper = pruner.get_modules_wrapper()[0]
    of_layer = name == "weight"
    held["parameter"] = model.get_parameter("0.weight") if of_layer else getattr(wrapper, name)
    for _ in range(3):
        mask = wrapper.weight_mask.clone()
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    pruned = seen[-1][mask == 0]
    assert len(pruned) == 24
    assert ((pruned != 0).float().mean() > 0.9) if has_gradient else (pruned == 0).all()


@pytest.mark.parametrize("quantizer", [None, DoReFaQuantizer, BNNQuantizer])
def test_rigl_moves_connections_under_quantizers(quantizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [{"op_names": ["0"], "sparsity": 0.9}]
    pruner = RigLPruner(model, rules, optimizer, training_steps=200, update_every=5)
    pruner.compress()
    if quantizer is not None:
        quantizer(model, WEIGHTS, optimizer).compress()
    wrapper, classes = pruner.get_modules_wrapper()[0], torch.randn(16, 4)
    first = wrapper.weight_mask.clone()
    seen = first.clone()
    for _ in range(150):
        x = torch.randn(64, 16)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x @ classes).argmax(1)).backward()
        optimizer.step()
        seen = torch.maximum(seen, wrapper.weight_mask)
    assert (seen - first).sum() > 40
