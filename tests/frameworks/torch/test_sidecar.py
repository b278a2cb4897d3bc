import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lilliput.torch import LevelPruner

HALF = [{"op_types": ["default"], "sparsity": 0.5}]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(torch.tanh(self.fc(x)))


def make(build=lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))):
    torch.manual_seed(0)
    model = build()
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    return model, pruner.get_wrappers()[0].weight_mask


def test_a_masked_layer_shows_the_parameter_itself():
    model, _ = make()
    parameter = model[0]._parameters["weight"]
    assert model[0].weight is parameter is model.get_parameter("0.weight")
    assert int((parameter == 0).sum()) == 18


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: layer.weight.data.fill_(2.0),
        lambda layer: nn.init.constant_(layer.weight, 2.0),
        lambda layer: setattr(layer.weight, "data", torch.full((6, 6), 2.0)),
        lambda layer: layer.weight.data.view(-1).copy_(torch.full((36,), 2.0)),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.full((6, 6), 2.0))),
    ],
    ids=["data", "init", "new data", "view", "new parameter"],
)
def test_writes_reach_the_kept_weights_and_leave_the_pruned_at_zero(write):
    model, mask = make()
    write(model[0])
    x = torch.randn(2, 6)
    expected = nn.functional.linear(x, 2.0 * mask, model[0].bias)
    assert torch.equal(model[0](x), expected)
    assert torch.equal(model[0].weight, 2.0 * mask)
    assert model[0].weight is model[0]._parameters["weight"]


def test_the_gradient_is_seen_and_zero_where_pruned():
    model, mask = make()
    (model(torch.randn(4, 6)).sum() + model[0].weight.square().sum()).backward()
    assert model[0].weight.grad[mask == 1].all() and not model[0].weight.grad[mask == 0].any()


def test_a_layer_that_is_frozen_first_and_trained_later_has_its_gradient_masked():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6)).requires_grad_(False)
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    model[0].weight.requires_grad_(True)
    model(torch.randn(4, 6)).sum().backward()
    mask = pruner.get_wrappers()[0].weight_mask
    assert not model[0].weight.grad[mask == 0].any()


def test_a_layer_that_is_used_twice_can_be_trained():
    model, mask = make(Twice)
    model(torch.randn(4, 6)).sum().backward()
    assert not model.fc.weight.grad[mask == 0].any()


@pytest.mark.parametrize("context", ["checkpoint", "autocast"])
def test_gradients_under_checkpointing_and_autocast_are_masked(context):
    model, mask = make()
    x = torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=context == "autocast"):
        output = checkpoint(model, x, use_reentrant=False) if context == "checkpoint" else model(x)
    output.float().sum().backward()
    grad = model[0].weight.grad
    assert grad[mask == 1].any() and not grad[mask == 0].any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_shows_its_own_parameter_and_masks_its_gradient(duplicate):
    model, mask = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twin = duplicate(model)
    assert twin[0].weight is twin[0]._parameters["weight"] is not model[0].weight
    twin[0].weight.data.fill_(1.0)
    assert torch.equal(twin[0].weight, mask) and not torch.equal(model[0].weight, mask)
    twin(torch.randn(4, 6)).sum().backward()
    assert not twin[0].weight.grad[mask == 0].any() and model[0].weight.grad is None


@pytest.mark.parametrize(
    "flag",
    [
        lambda on: None,
        torch.__future__.set_overwrite_module_params_on_conversion,
        torch.__future__.set_swap_module_params_on_conversion,
    ],
    ids=["in place", "overwritten", "swapped"],
)
def test_a_conversion_keeps_masks_and_gradients(flag):
    model, mask = make()
    flag(True)
    try:
        model.double()
    finally:
        flag(False)
    assert model[0].weight is model[0]._parameters["weight"]
    assert model[0].weight.dtype == torch.float64
    model[0].weight.data.fill_(1.0)
    model(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert torch.equal(model[0].weight, mask.double())
    assert not model[0].weight.grad[mask == 0].any()


def test_functional_calls_are_masked_and_their_tensors_left_alone():
    model, mask = make()
    x = torch.randn(2, 6)
    dense = {name: nn.Parameter(torch.ones_like(p)) for name, p in model.named_parameters()}
    output = torch.func.functional_call(model, dense, (x,))
    assert all(bool((p == 1).all()) for p in dense.values())
    output.sum().backward()
    assert not dense["0.weight"].grad[mask == 0].any()
    assert torch.vmap(model)(x).shape == (2, 3)
    assert torch.func.jacrev(model)(x[0]).shape == (3, 6)
    with torch.inference_mode():
        assert torch.equal(model(x), model(x))


def test_strip_leaves_no_hook_on_the_parameter():
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    pruner = LevelPruner(layer, HALF)
    pruner.compress()
    layer(torch.randn(2, 6)).sum().backward()
    pruner.strip()
    assert not layer.weight._backward_hooks
    layer.zero_grad()
    layer(torch.randn(2, 6)).sum().backward()
    assert layer.weight.grad.all()


def test_a_hook_of_the_users_own_stays():
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    seen = []
    layer.weight.register_hook(seen.append)
    pruner = LevelPruner(layer, HALF)
    pruner.compress()
    pruner.strip()
    layer(torch.randn(2, 6)).sum().backward()
    assert len(seen) == 1


def test_optimizers_that_nobody_told_about_move_no_pruned_weight():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, fused=True)
    x = torch.randn(8, 6)
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    mask = pruner.get_wrappers()[0].weight_mask
    for _ in range(3):
        model(x).square().sum().backward()
        optimizer.step()
        assert not model[0].weight[mask == 0].any()


def test_a_state_dict_holds_the_zeros_also_right_after_a_step_of_an_optimizer_that_nobody_told_about():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6)), torch.randn(4, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for is_masked in (False, True):
        if is_masked:
            LevelPruner(model, HALF).compress()
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()  # which remembers what it has seen before the masks
    state = model.state_dict()
    mask = state["0.lilliput.0.weight_mask"]
    assert int((mask == 0).sum()) == 18
    assert torch.equal(state["0.weight"] != 0, mask == 1)
