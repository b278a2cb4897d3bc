import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.torch import LAMPPruner, LevelPruner, OneShotPruner, ScoreMasker


def zeros(tensor):
    return int((tensor == 0).sum())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    sparsity=st.floats(0, 1, exclude_max=True),
    grid=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_sparsity_is_exact_and_the_largest_weights_are_kept(
    rows, columns, sparsity, grid, seed
):
    torch.manual_seed(seed)
    model = nn.Linear(columns, rows, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randn(rows, columns) + 0.01)
        if grid:
            model.weight.copy_((model.weight * 2).sign() * 0.5)
    before = model.weight.detach().clone()
    pruner = LevelPruner(model, [{"sparsity": sparsity}])
    pruner.compress()
    mask = pruner.get_modules_wrapper()[0].weight_mask
    assert zeros(mask) == round(rows * columns * sparsity)
    kept, dropped = before[mask == 1].abs(), before[mask == 0].abs()
    assert not len(kept) or not len(dropped) or kept.min() >= dropped.max()
    assert torch.equal(model.weight, before * mask)


def test_it_agrees_with_torchs_own_magnitude_pruning_where_there_are_no_ties():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(50, 40), nn.Linear(50, 40)
    theirs.load_state_dict(ours.state_dict())
    LevelPruner(ours, [{"sparsity": 0.8}]).compress()
    prune.l1_unstructured(theirs, "weight", amount=0.8)
    assert torch.equal(ours.weight, theirs.weight)


def test_total_sparsity_ranks_all_layers_together():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    with torch.no_grad():
        model[1].weight.mul_(10)
    weights = [layer.weight.detach().clone() for layer in model]
    LevelPruner(model, [{"total_sparsity": 0.5}]).compress()
    assert zeros(model[0].weight) + zeros(model[1].weight) == 100
    border = np.sort(torch.cat([w.flatten().abs() for w in weights]).numpy())[99]
    for layer, weight in zip(model, weights, strict=True):
        assert torch.equal(layer.weight == 0, weight.abs() <= float(border))
    assert zeros(model[0].weight) > zeros(model[1].weight)


def test_total_sparsity_respects_the_limit_per_layer_and_stays_exact():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    with torch.no_grad():
        model[1].weight.mul_(10)
    LevelPruner(model, [{"total_sparsity": 0.5, "max_sparsity_per_layer": 0.6}]).compress()
    assert (zeros(model[0].weight), zeros(model[1].weight)) == (60, 40)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "received neither"),
        ({"sparsity": 0.5, "total_sparsity": 0.5}, "received both"),
        ({"sparsity": 0.5, "max_sparsity_per_layer": 0.6}, "only limits 'total_sparsity'"),
        ({"total_sparsity": 0.5, "max_sparsity_per_layer": 0.4}, "cannot be reached"),
    ],
)
def test_contradictory_targets_are_refused(rule, words):
    with pytest.raises(ConfigError, match=words):
        LevelPruner(nn.Linear(2, 2), [rule])


def test_masks_are_computed_once():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    mask = pruner.get_modules_wrapper()[0].weight_mask.clone()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().sum().backward()
        optimizer.step()
        pruner.update_epoch(1)
    assert torch.equal(pruner.get_modules_wrapper()[0].weight_mask, mask)


def test_nan_weights_are_refused_by_layer_and_nothing_changes():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    first = model[0].weight.detach().clone()
    with pytest.raises(AlgorithmError, match="layer '1' has NaN"):
        LevelPruner(model, [{"sparsity": 0.5}]).compress()
    assert torch.equal(model[0].weight, first) and type(model[0]) is nn.Linear


def test_a_new_criterion_is_one_method():
    class Farthest(ScoreMasker):
        def score(self, wrapper):
            return (wrapper.weight - wrapper.weight.mean()).abs()

    class FarthestPruner(OneShotPruner):
        masker_type = Farthest

    model = nn.Linear(10, 10)
    weight = model.weight.detach().clone()
    FarthestPruner(model, [{"sparsity": 0.3}]).compress()
    distance = (weight - weight.mean()).abs()
    assert torch.equal(model.weight == 0, distance <= distance.flatten().kthvalue(30).values)


def test_a_limit_that_small_layers_cannot_meet_is_refused_or_exact():
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 3))
    LevelPruner(model, [{"total_sparsity": 0.5, "max_sparsity_per_layer": 0.5}]).compress()
    assert sum(zeros(layer.weight) for layer in model) == 3
    tiny = nn.Sequential(*(nn.Linear(1, 1) for _ in range(4)))
    with pytest.raises(AlgorithmError, match="requests the removal of 2 weights.*allows 0"):
        LevelPruner(tiny, [{"total_sparsity": 0.5, "max_sparsity_per_layer": 0.5}]).compress()


@pytest.mark.parametrize("kind", [LevelPruner, LAMPPruner])
def test_a_finished_run_of_a_total_sparsity_is_restored(kind, tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        return kind(model, [{"op_types": ["Linear"], "total_sparsity": 0.5}])

    first, second = make(), make()
    first.compress()
    unpruned = second.state()
    first.state().save(tmp_path / "state")
    second.load_state(tmp_path / "state")
    second.compress()
    for its, mine in zip(first.get_wrappers(), second.get_wrappers(), strict=True):
        assert torch.equal(its.weight_mask, mine.weight_mask)
    second.load_state(unpruned)  # back to where it was, too
    assert all(wrapper.layer_sparsity is None for wrapper in second.get_wrappers())
