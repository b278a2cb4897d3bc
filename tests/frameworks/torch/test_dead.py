"""Which units of a weight are zero."""

import numpy as np
import pytest
import torch

from lilliput.frameworks.torch.dead import zeros_in
from lilliput.graph.groups import Slice


def dead(weight, dim):
    piece = Slice("weight", dim, np.arange(weight.shape[dim]), is_output=True)
    return zeros_in({"weight": weight})(piece).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_unit_is_dead_if_all_of_its_numbers_are_zero(dtype, dim):
    weight = torch.ones(3, 3, 3).to(dtype)
    weight.select(dim, 1).zero_()
    weight.select(dim, 2)[0, 1:] = 0
    assert dead(weight, dim) == [False, True, False]


def test_nan_is_not_zero():
    assert dead(torch.tensor([[0.0, float("nan")], [0.0, 0.0]]), 0) == [False, True]


@pytest.mark.parametrize(("shape", "dim"), [((0, 3), 0), ((3, 0), 1), ((3, 0), 0)])
def test_units_without_numbers_are_dead(shape, dim):
    assert dead(torch.zeros(shape), dim) == [True] * shape[dim]
