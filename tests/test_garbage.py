"""Python's garbage collector rests while a model is recorded and cut, and works afterwards as before."""

import gc

import pytest
import torch
from torch import nn

from lilliput.errors import LilliputError
from lilliput.garbage import uncollected
from lilliput.torch import L1NormPruner, speedup


def pruned():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    return model, x


def test_the_collector_is_on_again_afterwards_even_if_something_fails():
    with pytest.raises(KeyError), uncollected():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pruning_and_cutting_leave_the_collector_on():
    model, x = pruned()
    assert gc.isenabled()
    speedup(model, x)
    assert gc.isenabled()
    with pytest.raises(LilliputError):
        speedup(model, x)  # nothing is left to cut
    assert gc.isenabled()
