import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lilliput.ops.schedule import linear_sparsity
from lilliput.torch import AGPPruner, LinearPruner


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    initial=st.floats(0, 0.5),
    rise=st.floats(0, 0.49),
    start=st.integers(0, 3),
    updates=st.integers(1, 5),
    frequency=st.integers(1, 3),
)
def test_the_line_goes_through_its_ends_in_equal_steps(initial, rise, start, updates, frequency):
    end, final = start + updates * frequency, initial + rise
    line = [linear_sparsity(e, initial, final, start, end, frequency) for e in range(end + 2)]
    assert line[:start] == [0.0] * start
    assert (line[start], line[end], line[end + 1]) == (initial, final, final)
    grid = line[start : end + 1 : frequency]
    steps = [b - a for a, b in itertools.pairwise(grid)]
    assert max(steps) - min(steps) < 1e-9


@pytest.mark.parametrize("cls", [AGPPruner, LinearPruner])
def test_a_schedule_that_never_ends_is_noticed(cls, caplog):
    pruner = cls(nn.Linear(10, 10), [{"final_sparsity": 0.8, "end_epoch": 4}])
    pruner.compress()
    pruner.update_epoch(2)
    pruner.strip()
    assert f"{cls.__name__}: stripped at epoch 2" in caplog.text


def test_linear_and_agp_end_with_the_same_masks():
    torch.manual_seed(0)
    models = [nn.Linear(10, 10) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for cls, model in zip((AGPPruner, LinearPruner), models, strict=True):
        pruner = cls(model, [{"final_sparsity": 0.5, "end_epoch": 3}])
        pruner.compress()
        for epoch in range(4):
            pruner.update_epoch(epoch)
    assert torch.equal(models[0].weight, models[1].weight)
