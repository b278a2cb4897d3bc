"""``mode='balance'``: every block of a weight loses the same number of its smallest entries."""

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.mark.parametrize(
    ("layer", "block", "sparsity"),
    [
        (lambda: nn.Linear(12, 8), [4], 0.5),
        (lambda: nn.Linear(10, 10), [5, 5], 0.6),
        (lambda: nn.Linear(12, 8), [8, 12], 0.25),
        (lambda: nn.Conv2d(4, 6, 3), [2, 3, 3], 0.5),
    ],
)
def test_each_block_keeps_as_many_of_its_largest(layer, block, sparsity):
    from nni.compression.pytorch.pruning import LevelPruner

    torch.manual_seed(0)
    model = nn.Sequential(layer())
    weight = np.abs(model[0].weight.detach().numpy())
    rules = [{"op_types": ["Linear", "Conv2d"], "sparsity": sparsity}]
    _, masks = LevelPruner(model, rules, mode="balance", balance_gran=block).compress()
    mask, sizes = masks["0"]["weight"].numpy(), [1] * (weight.ndim - len(block)) + block
    for start in np.ndindex(*(n // part for n, part in zip(weight.shape, sizes, strict=True))):
        here = tuple(slice(i * part, (i + 1) * part) for i, part in zip(start, sizes, strict=True))
        values, kept = weight[here].ravel(), mask[here].ravel()
        count = round(values.size * sparsity)
        expected = np.ones(values.size)
        expected[np.argsort(values)[:count]] = 0
        assert np.array_equal(kept, expected)


@pytest.mark.parametrize(("block", "words"), [(None, "sizes of a block"), ([5], "do not divide")])
def test_blocks_that_do_not_fit_are_refused(block, words):
    from nni.compression.pytorch.pruning import LevelPruner

    with pytest.raises(ConfigError, match=words):
        LevelPruner(
            nn.Linear(12, 8), [{"sparsity": 0.5}], mode="balance", balance_gran=block
        ).compress()
