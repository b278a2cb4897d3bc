"""Copies of models that the analysis works on."""

import torch
from torch import nn

from lilliput.frameworks.torch.capture import copy_model, whole_copy


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
