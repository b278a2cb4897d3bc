"""Copies of models that the analysis works on."""

import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.copies import copy_model, whole_copy
from lilliput.torch import L1NormPruner, preflight, speedup


class Knotted(nn.Module):
    """Refers to its own parts in several ways."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.again = self.one
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.one.weight
        self.listed = [self.one, {"last": self.tied}]
        self.owner = (self,)
        self.gains = {self.one: 2.0}
        self.sizes, self.names = (3, 3), {"one", "tied"}
        self.register_buffer("steps", torch.zeros(2), persistent=False)


def test_a_copy_is_knotted_as_its_original_is():
    model = Knotted()
    twin = copy_model(model)
    assert twin.again is twin.one is twin.listed[0]
    assert twin.tied is twin.listed[1]["last"] and twin.owner == (twin,)
    assert twin.tied.weight is twin.one.weight and twin.gains == {twin.one: 2.0}
    assert vars(twin).keys() == vars(model).keys()
    pairs = zip(twin.modules(), model.modules(), strict=True)
    assert all(a is not b and type(a) is type(b) for a, b in pairs)
    for name in ("_forward_hooks", "_non_persistent_buffers_set", "names", "steps"):
        assert getattr(twin, name) is not getattr(model, name)
    assert twin._non_persistent_buffers_set == {"steps"} and twin.sizes == (3, 3)
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()


def test_tensors_that_were_computed_are_copied():
    model = nn.Sequential(nn.Linear(3, 3))
    model.table = model[0].weight.sum(1)
    model[0]._parameters["weight"] = model[0].weight * 1.0
    for twin in (copy_model(model), whole_copy(model)):
        assert torch.equal(twin[0].weight, model[0].weight) and twin[0].weight.is_leaf
    assert torch.equal(twin.table, model.table) and twin.table is not model.table


def test_a_copy_is_made_as_the_class_says():
    class Own(nn.Module):
        def __deepcopy__(self, memo):
            memo[id(self)] = self
            return self

    model = nn.Sequential(Own(), nn.LSTM(2, 3))
    twin = copy_model(model)
    assert twin[0] is model[0]
    assert twin[1]._flat_weights[0] is twin[1].weight_ih_l0


class Adapted(nn.Linear):
    """Merges its adapter into the weight for evaluation, as loralib does."""

    def __init__(self, size):
        super().__init__(size, size)
        self.down, self.up = (nn.Parameter(torch.randn(*x)) for x in ((2, size), (size, 2)))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += (self.up @ self.down) * (-1 if mode else 1)
            self.is_merged = not mode
        return self

    def forward(self, x):
        added = 0 if self.is_merged else x @ self.down.T @ self.up.T
        return super().forward(x) + added


def adapted():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.ReLU(), Adapted(8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers), torch.randn(4, 6)


def test_weights_that_are_merged_in_evaluation_stay_as_they_are_in_training():
    model, x = adapted()
    before = model[2].weight.detach().clone()
    preflight(model, x)
    pruner = L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x)
    pruner.compress()
    keep = pruner.get_modules_wrapper()[0].weight_mask.any(1)
    assert torch.equal(model[2].weight[:, keep], before[:, keep]) and not model[2].is_merged


def test_a_model_that_would_merge_weights_is_cut_in_evaluation_only():
    model, x = adapted()
    model.eval()
    pruner = L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x)
    pruner.compress()
    model[2].train()  # alone: the model may be in evaluation
    with pytest.raises(UnsupportedModelError, match="changes '2.weight'.*call model.eval"):
        speedup(model, x)
    model.eval()
    expected = model(x)
    small = speedup(model, x).model
    assert small[0].out_features == 4
    assert torch.allclose(small(x), expected, atol=1e-5)
