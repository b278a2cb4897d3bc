"""Copies of module trees are those of copy.deepcopy, only made faster."""

import copy

import pytest
import torch
from torch import nn

from lilliput.frameworks.torch.deepcopy import copy_tree
from lilliput.frameworks.torch.sidecar import mask_of
from lilliput.torch import L1NormPruner, LevelPruner


class Stateful(nn.Linear):
    """Says itself what of it is copied."""

    def __init__(self):
        super().__init__(4, 4)
        self.calls = [1, 2]

    def __getstate__(self):
        return {**self.__dict__, "calls": []}


class Packed(nn.Linear):
    """Gives its state as something other than a dict."""

    def __getstate__(self):
        return [self.__dict__]

    def __setstate__(self, state):
        super().__setstate__(state[0])


class Counted(nn.Linear):
    """Is copied by a method of its own."""

    def __deepcopy__(self, memo):
        twin = nn.Linear(4, 4)
        twin.is_counted = True
        return twin


def masked(pruner=L1NormPruner):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    options = {"example_inputs": torch.randn(2, 6)} if pruner is L1NormPruner else {}
    return pruner(model, [{"op_names": ["0"], "sparsity": 0.5}], **options).compress()


@pytest.mark.parametrize("pruner", [L1NormPruner, LevelPruner])
def test_a_masked_model_is_copied_as_by_deepcopy(pruner):
    model = masked(pruner)
    expected, twin = copy.deepcopy(model), copy_tree(model, {})
    assert [type(m) for m in twin.modules()] == [type(m) for m in expected.modules()]
    own = {id(m) for m in model.modules()}
    assert not own & {id(m) for m in twin.modules()}
    state = twin.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(x, state[name]) for name, x in expected.state_dict().items())
    pointers = {t.data_ptr() for t in model.state_dict().values()}
    assert not pointers & {t.data_ptr() for t in state.values()}


def test_a_copy_of_a_masked_model_holds_its_own_zeros():
    model = masked()
    twin = copy_tree(model, {})
    with torch.no_grad():
        twin[0].weight.add_(1)
    gone = mask_of(twin[0], "weight") == 0
    assert gone.any()
    assert not twin[0].weight[gone].any()
    twin(torch.randn(2, 6)).sum().backward()
    assert not twin[0].weight.grad[gone].any()
    assert model[0].weight.grad is None
    wrapper = next(iter(twin[0].lilliput._modules.values()))
    assert wrapper.layer_info.module is twin[0]


def test_what_modules_share_is_shared_in_the_copy():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].both = [model[1], (model[0], 3)]
    twin = copy_tree(model, {})
    assert twin[0].weight is twin[1].weight
    assert twin[0].both[0] is twin[1]
    assert twin[0].both[1] == (twin[0], 3)


def test_states_that_modules_make_for_the_copy_are_not_taken_for_one_another():
    """Each is a new object, whose identity is free again once it is copied."""
    model = nn.Sequential(*(Stateful() for _ in range(50)))
    twin = copy_tree(model, {})
    assert [m.calls for m in twin] == [[]] * 50
    assert [m.calls for m in model] == [[1, 2]] * 50
    assert len({id(m.calls) for m in twin}) == 50


def test_classes_that_copy_themselves_do():
    assert copy_tree(nn.Sequential(Counted(4, 4)), {})[0].is_counted
    packed = Packed(4, 4)
    assert torch.equal(copy_tree(nn.Sequential(packed), {})[0].weight, packed.weight)
