"""N:M patterns and blocks of single weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lilliput.errors import ConfigError
from lilliput.torch import AGPPruner, LevelPruner

exact = settings(max_examples=60, deadline=None, derandomize=True)


@exact
@given(
    kept=st.integers(1, 3),
    of=st.integers(4, 5),
    groups=st.integers(1, 3),
    kernel=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 99),
)
def test_n_of_every_m_inputs_are_kept_and_they_are_the_largest(kept, of, groups, kernel, seed):
    torch.manual_seed(seed)
    size = of * groups
    layer = nn.Linear(size, 3) if kernel is None else nn.Conv2d(size, 3, kernel)
    before = layer.weight.detach().abs().numpy().copy()
    LevelPruner(nn.Sequential(layer), [{"granularity": f"{kept}:{of}"}]).compress()
    after = layer.weight.detach().abs().numpy()
    for group in range(groups):
        part = slice(group * of, (group + 1) * of)
        assert ((after[:, part] != 0).sum(1) == kept).all()
        largest = np.sort(before[:, part], axis=1)[:, of - kept :]
        np.testing.assert_array_equal(np.sort(after[:, part], axis=1)[:, of - kept :], largest)


@exact
@given(
    block=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    counts=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    sparsity=st.floats(0, 0.99),
    seed=st.integers(0, 99),
)
def test_whole_blocks_of_the_smallest_sums_go(block, counts, sparsity, seed):
    torch.manual_seed(seed)
    (rows, columns), (high, wide) = block, counts
    layer = nn.Linear(columns * wide, rows * high, bias=False)
    before = layer.weight.detach().double().abs().numpy().reshape(high, rows, wide, columns)
    sums = before.sum((1, 3))
    LevelPruner(
        nn.Sequential(layer), [{"granularity": list(block), "sparsity": sparsity}]
    ).compress()
    zero = (layer.weight == 0).numpy().reshape(high, rows, wide, columns)
    gone = zero.all((1, 3))
    assert (zero.any((1, 3)) == gone).all()
    assert gone.sum() == round(high * wide * sparsity)
    assert not gone.any() or gone.all() or sums[gone].max() <= sums[~gone].min() + 1e-6


def test_a_schedule_comes_to_its_pattern_step_by_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 10))
    pruner = AGPPruner(model, [{"granularity": "2:4", "end_epoch": 3}])
    pruner.compress()
    before = torch.zeros(10, 8, dtype=torch.bool)
    counts = []
    for epoch in range(4):
        pruner.update_epoch(epoch)
        zero = model[0].weight == 0
        assert (zero.reshape(20, 4).sum(1) <= 2).all()
        assert (zero | ~before).all()
        before = zero
        counts.append(int(zero.sum()))
    assert counts == [0, 28, 39, 40]
    assert (zero.reshape(20, 4).sum(1) == 2).all()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"granularity": "2:3"}, "rule 0 → granularity: layer '0' has 8 inputs, which 3 does not"),
        (
            {"granularity": [3, 2], "sparsity": 0.5},
            "has 10×8 outputs and inputs, which blocks of 3×2",
        ),
        ({"granularity": "4:4"}, "removes nothing"),
        ({"granularity": "2:4", "sparsity": 0.6}, "has a sparsity of 0.5, 'sparsity' asks for 0.6"),
        ({"granularity": "2-4"}, "granularity"),
        ({"granularity": [2], "sparsity": 0.5}, "granularity"),
        ({"granularity": [2, 2]}, "received neither"),
        ({"granularity": [2, 2], "total_sparsity": 0.5}, "goes with 'sparsity'"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(rule, message):
    with pytest.raises(ConfigError, match=message):
        LevelPruner(nn.Sequential(nn.Linear(8, 10)), [rule])


def test_a_weight_of_one_axis_has_no_pattern():
    with pytest.raises(ConfigError, match="layer '1' has a one-dimensional weight"):
        LevelPruner(nn.Sequential(nn.Linear(8, 8), nn.PReLU(8)), [{"granularity": "2:4"}])
