"""The controls: LAMP, random and balanced pruning, against their definitions in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.pruning.lamp import lamp_scores
from lilliput.torch import (
    AGPPruner,
    LAMPPruner,
    LevelPruner,
    RandomChannelPruner,
    RandomPruner,
)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def masks_of(pruner):
    return [w.weight_mask.numpy() for w in pruner.get_modules_wrapper()]


def test_lamp_scores_are_the_papers():
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat = weight.flatten().tolist()
    expected = [x * x / sum(y * y for y in flat if abs(y) >= abs(x)) for x in flat]
    for scale in (1.0, 2.0**-700, 2.0**700):  # whose squares are 0 and infinite
        assert np.allclose(lamp_scores(weight * scale).flatten(), expected, rtol=1e-12)
    assert lamp_scores(torch.zeros(3)).tolist() == [0, 0, 0]
    assert lamp_scores(torch.tensor([2.0, 0.0, -2.0])).tolist() == [
        1,
        0,
        0.5,
    ]  # of equals, the first stays


def test_lamp_leaves_something_of_each_layer_of_tiny_or_equal_weights():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    with torch.no_grad():
        model[1].weight.mul_(1e-200)
        model[2].weight.fill_(0.1)
    LAMPPruner(model, [{"op_types": ["Linear"], "total_sparsity": 0.95}]).compress()
    assert all(bool(layer.weight.any()) for layer in model)
    assert sum(int((layer.weight == 0).sum()) for layer in model) == round(0.95 * 192)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_lamp_refuses_weights_that_cannot_be_ranked(value, word):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight[0, 0] = value
    before = [layer.weight.detach().clone() for layer in model]
    with pytest.raises(AlgorithmError, match=f"layer '0' has {word} among its weights"):
        LAMPPruner(model, [{"op_types": ["Linear"], "total_sparsity": 0.5}]).compress()
    for layer, weight in zip(model, before, strict=True):
        np.testing.assert_array_equal(layer.weight.detach(), weight)


def test_lamp_does_not_mind_the_scale_of_a_layer_and_keeps_something_of_each():
    first, second = mlp(), mlp()
    with torch.no_grad():
        second[0].weight.mul_(1000)
    pruners = [LAMPPruner(m, [{"total_sparsity": 0.98}]) for m in (first, second)]
    for pruner in pruners:
        pruner.compress()
    one, two = map(masks_of, pruners)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(mask.sum() >= 1 for mask in one)
    total = sum(mask.size for mask in one)
    assert sum((mask == 0).sum() for mask in one) == round(0.98 * total)
    flat = np.concatenate([lamp_scores(m.weight).flatten() for m in mlp()[::2]])
    kept = np.concatenate([mask.ravel() for mask in one]) == 1
    assert flat[kept].min() > flat[~kept].max()


def test_random_masks_depend_on_seed_and_name_alone():
    def masks(seed, width=16):
        model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, width))
        pruner = RandomPruner(model, [{"sparsity": 0.5}], seed=seed)
        pruner.compress()
        return masks_of(pruner)

    one, again, other, wider = masks(1), masks(1), masks(2), masks(1, width=20)
    assert np.array_equal(one[0], again[0]) and np.array_equal(one[0], wider[0])
    assert 0.3 < (one[0] != other[0]).mean() < 0.7
    assert 0.3 < (one[0].ravel() != one[1].ravel()[: one[0].size]).mean() < 0.7


def test_random_blocks_channels_and_schedules():
    model = nn.Linear(16, 8)
    pruner = RandomPruner(model, [{"sparsity": 0.5, "granularity": [4, 1]}])
    pruner.compress()
    blocks = masks_of(pruner)[0].reshape(2, 4, 16).sum(1)
    assert set(blocks.ravel()) == {0, 4} and (blocks == 0).sum() == 16
    model = mlp()
    RandomChannelPruner(
        model, [{"op_names": ["0"], "sparsity": 0.25}], example_inputs=torch.zeros(1, 12), seed=3
    ).compress()
    gone = (model[0].weight == 0).all(1)
    assert int(gone.sum()) == 4 and bool((model[2].weight[:, gone] == 0).all())
    model = nn.Linear(10, 10)
    pruner = AGPPruner(model, [{"final_sparsity": 0.8, "end_epoch": 2}], pruning_algorithm="random")
    pruner.compress()
    pruner.update_epoch(1)
    before = masks_of(pruner)[0].copy()
    pruner.update_epoch(2)
    assert (masks_of(pruner)[0] <= before).all() and (masks_of(pruner)[0] == 0).sum() == 80


@pytest.mark.parametrize("seed", [-1, True, 0.5])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ConfigError, match="seed: received"):
        RandomPruner(nn.Linear(2, 2), [{"sparsity": 0.5}], seed=seed)


@pytest.mark.parametrize(
    ("layer", "block", "sparsity"),
    [
        (lambda: nn.Linear(12, 8), [4], 0.5),
        (lambda: nn.Linear(10, 10), [5, 5], 0.6),
        (lambda: nn.Conv2d(4, 6, 3), [2, 3, 3], 0.5),
    ],
)
def test_each_block_keeps_as_many_of_its_largest(layer, block, sparsity):
    torch.manual_seed(0)
    model = layer()
    weight = np.abs(model.weight.detach().numpy())
    LevelPruner(model, [{"sparsity": sparsity}], mode="balance", balance_gran=block).compress()
    kept, sizes = (model.weight != 0).numpy(), [1] * (weight.ndim - len(block)) + block
    for start in np.ndindex(*(n // part for n, part in zip(weight.shape, sizes, strict=True))):
        here = tuple(slice(i * part, (i + 1) * part) for i, part in zip(start, sizes, strict=True))
        count = round(weight[here].size * sparsity)
        assert set(weight[here][~kept[here]]) == set(np.sort(weight[here].ravel())[:count])


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"mode": "balance"}, {"sparsity": 0.5}, "sizes of a block"),
        ({"mode": "balance", "balance_gran": [5]}, {"sparsity": 0.5}, "do not divide"),
        (
            {"mode": "balance", "balance_gran": [4]},
            {"total_sparsity": 0.5},
            "the same number of weights",
        ),
        (
            {"mode": "balance", "balance_gran": [4]},
            {"sparsity": 0.5, "granularity": [1, 4]},
            "does not use this key",
        ),
        ({"mode": "even"}, {"sparsity": 0.5}, "expected 'normal' or 'balance'"),
        ({"balance_gran": [4]}, {"sparsity": 0.5}, "goes with mode='balance'"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(options, rule, words):
    model = nn.Linear(12, 8)
    before = model.weight.detach().clone()
    with pytest.raises(ConfigError, match=words):
        LevelPruner(model, [rule], **options).compress()
    assert torch.equal(model.weight, before) and type(model) is nn.Linear


def test_lamp_of_each_layer_on_its_own_is_magnitude_also_in_blocks():
    torch.manual_seed(0)
    models = [nn.Linear(16, 16), nn.Linear(16, 16)]
    models[1].load_state_dict(models[0].state_dict())
    rules = [{"sparsity": 0.5, "granularity": [4, 4]}]
    LAMPPruner(models[0], rules).compress()
    LevelPruner(models[1], rules).compress()
    assert torch.equal(models[0].weight == 0, models[1].weight == 0)
