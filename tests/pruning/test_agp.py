import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.schedule import cubic_sparsity
from lilliput.torch import AGPPruner

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
    assert "before final_sparsity was reached in 1 layers" in caplog.text
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


def test_epochs_may_be_integers_of_other_libraries():
    pruner = AGPPruner(nn.Linear(2, 2), [RULE])
    pruner.update_epoch(np.int64(3))
    assert pruner.now_epoch == 3 and type(pruner.now_epoch) is int
