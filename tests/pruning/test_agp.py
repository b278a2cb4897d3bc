import numpy as np
import pytest
import torch
from torch import nn

from lilliput.core.masker import WeightMasker
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.schedule import cubic_sparsity
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.torch import AGPPruner, LinearPruner

RULE = {
    "initial_sparsity": 0.1,
    "final_sparsity": 0.9,
    "start_epoch": 1,
    "end_epoch": 9,
    "frequency": 2,
}


def run(rule=RULE, epochs=range(12), train=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    pruner = AGPPruner(model, [rule], optimizer)
    pruner.compress()
    masks = []
    for epoch in epochs:
        pruner.update_epoch(epoch)
        masks.append([w.weight_mask.clone() for w in pruner.get_modules_wrapper()])
        if train:
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().sum().backward()
            optimizer.step()
    return masks


def test_every_epoch_has_exactly_the_sparsity_of_the_schedule():
    for epoch, masks in enumerate(run()):
        target = cubic_sparsity(epoch, 0.1, 0.9, 1, 9, 2)
        assert [int((m == 0).sum()) for m in masks] == [round(600 * target), round(300 * target)]


def two_scales():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    with torch.no_grad():
        model[1].weight.mul_(3)
    return model


@pytest.mark.parametrize("cls", [AGPPruner, LinearPruner])
def test_a_total_sparsity_ranks_all_layers_together_in_every_epoch(cls):
    model = two_scales()
    sizes = np.concatenate([np.abs(layer.weight.detach().numpy()).ravel() for layer in model])
    rule = {"initial_sparsity": 0.1, "total_sparsity": 0.9, "start_epoch": 1, "end_epoch": 9}
    pruner = cls(model, [rule])
    pruner.compress()
    for epoch in range(11):
        pruner.update_epoch(epoch)
        count = round(900 * cls.schedule(epoch, 0.1, 0.9, 1, 9, 1))
        wanted = np.ones(900)
        wanted[np.argsort(sizes)[:count]] = 0
        masks = [w.weight_mask.numpy().ravel() for w in pruner.get_modules_wrapper()]
        assert np.array_equal(np.concatenate(masks), wanted)
    assert (masks[0] == 0).mean() > 0.95 and (masks[1] == 0).mean() < 0.85


def test_a_total_sparsity_keeps_to_the_limit_per_layer():
    model = two_scales()
    rule = {"total_sparsity": 0.9, "max_sparsity_per_layer": 0.92, "end_epoch": 3}
    pruner = AGPPruner(model, [rule])
    pruner.compress()
    pruner.update_epoch(3)
    assert [int((layer.weight == 0).sum()) for layer in model] == [552, 258]


class LayerByLayer(AGPPruner):
    def calc_mask(self, wrapper, wrapper_idx=None):
        return super().calc_mask(wrapper, wrapper_idx)


def test_a_total_sparsity_holds_if_masks_are_asked_for_layer_by_layer():
    model = two_scales()
    pruner = LayerByLayer(model, [{"total_sparsity": 0.5, "end_epoch": 2}])
    pruner.compress()
    for epoch in (2, 3, 4):
        pruner.update_epoch(epoch)
        assert sum(int((layer.weight == 0).sum()) for layer in model) == 450


def test_a_limit_that_cannot_be_kept_is_refused_before_the_training():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(4)))
    rule = {"total_sparsity": 0.5, "max_sparsity_per_layer": 0.5, "end_epoch": 9}
    with pytest.raises(AlgorithmError, match="requests the removal of 2 weights.*allows 0"):
        AGPPruner(model, [rule]).compress()


class Unranked(WeightMasker):
    """A criterion without scores."""


class UnrankedPruner(OneShotPruner):
    masker_type = Unranked


def test_a_criterion_without_scores_cannot_rank_layers_together():
    with pytest.raises(ConfigError, match="total_sparsity: Unranked has no scores"):
        AGPPruner(nn.Linear(4, 4), [{"total_sparsity": 0.5}], None, UnrankedPruner)


def test_layers_of_other_rules_keep_their_own_schedule():
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10), nn.Linear(10, 10))
    rules = [
        {"op_types": ["Linear"], "total_sparsity": 0.5, "end_epoch": 2},
        {"op_names": ["2"], "final_sparsity": 0.2, "end_epoch": 4},
    ]
    pruner = AGPPruner(model, rules)
    pruner.compress()
    pruner.update_epoch(4)
    zeros = [int((layer.weight == 0).sum()) for layer in model]
    assert (zeros[0] + zeros[1], zeros[2]) == (450, 20)
    assert "total_sparsity 0.5; final_sparsity 0.2" in repr(pruner)


def test_pruned_weights_never_come_back():
    masks = run()
    for earlier, later in zip(masks, masks[1:], strict=False):
        assert all(bool((b <= a).all()) for a, b in zip(earlier, later, strict=True))


def test_going_back_in_epochs_does_not_reopen_masks():
    masks = run(epochs=[9, 0, 3], train=False)
    assert all(torch.equal(a, b) for a, b in zip(masks[0], masks[2], strict=True))


def test_sparsity_is_another_name_of_final_sparsity():
    masks = run({"sparsity": 0.5, "end_epoch": 2}, epochs=[2])
    assert int((masks[0][0] == 0).sum()) == 300


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None, True])
def test_epochs_must_be_counted(epoch):
    pruner = AGPPruner(nn.Linear(2, 2), [RULE])
    with pytest.raises(AlgorithmError, match="expected an integer from 0"):
        pruner.update_epoch(epoch)


def test_an_algorithm_without_scores_cannot_be_scheduled():
    with pytest.raises(ConfigError, match="no scores"):
        AGPPruner(nn.Linear(2, 2), [RULE], pruning_algorithm="agp")
    with pytest.raises(ConfigError, match="no pruner is called 'levle'. Did you mean 'level'"):
        AGPPruner(nn.Linear(2, 2), [RULE], pruning_algorithm="levle")


def test_the_target_is_met_after_an_older_checkpoint_was_loaded():
    model = nn.Linear(10, 10)
    pruner = AGPPruner(model, [{"final_sparsity": 0.8, "end_epoch": 4}])
    pruner.compress()
    checkpoints = []
    for epoch in range(5):
        pruner.update_epoch(epoch)
        checkpoints.append({k: v.clone() for k, v in model.state_dict().items()})
    model.load_state_dict(checkpoints[1])
    assert int((model.weight == 0).sum()) < 80
    pruner.update_epoch(5)
    assert int((model.weight == 0).sum()) == 80


def test_stripping_before_the_end_of_the_schedule_is_said(caplog):
    pruner = AGPPruner(nn.Linear(10, 10), [{"final_sparsity": 0.8, "end_epoch": 4}])
    pruner.compress()
    pruner.strip()
    assert "before the final sparsity was reached in 1 layers" in caplog.text
    caplog.clear()
    pruner.compress()
    pruner.update_epoch(4)
    pruner.strip()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"start_epoch": 5, "end_epoch": 2}, "'end_epoch' 2 is before 'start_epoch' 5"),
        ({"end_epoch": 10, "frequency": 20}, "'frequency' 20 is longer than the schedule of 10"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(rule, words):
    with pytest.raises(ConfigError, match=words):
        AGPPruner(nn.Linear(2, 2), [{"final_sparsity": 0.5, **rule}])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"final_sparsity": 0.5}, "received both"),
        ({"granularity": "2:4"}, "'granularity' goes with 'sparsity'"),
        ({"max_sparsity_per_layer": 0.4}, "cannot be reached"),
        ({"initial_sparsity": 0.6}, "'total_sparsity' 0.5 is below 'initial_sparsity' 0.6"),
    ],
)
def test_totals_that_make_no_sense_are_refused(rule, words):
    with pytest.raises(ConfigError, match=words):
        AGPPruner(nn.Linear(4, 4), [{"total_sparsity": 0.5, **rule}])


def test_channels_of_several_layers_cannot_be_scheduled_together():
    with pytest.raises(ConfigError, match="rule 0 → total_sparsity: a schedule ranks single"):
        AGPPruner(nn.Linear(4, 4), [{"total_sparsity": 0.5}], None, "l1")


def test_epochs_may_be_integers_of_other_libraries():
    pruner = AGPPruner(nn.Linear(2, 2), [RULE])
    pruner.update_epoch(np.int64(3))
    assert pruner.now_epoch == 3 and type(pruner.now_epoch) is int
