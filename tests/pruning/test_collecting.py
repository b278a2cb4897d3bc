"""Criteria that watch the training: when their masks come, and what happens if they never do."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.frameworks.torch.lab import loss_of, sgd, train
from lilliput.testing import TinyCNN
from lilliput.torch import (
    ActivationAPoZRankPruner,
    ActivationMeanRankPruner,
    CompressionState,
    LeastSquaresPruner,
    TaylorFOWeightPruner,
)

RULES = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
ALL = [ActivationAPoZRankPruner, ActivationMeanRankPruner, TaylorFOWeightPruner]


def gone(layer):
    return (layer.weight.detach().flatten(1) == 0).all(1).nonzero().flatten().tolist()


def hooks_of(model):
    return [hook for module in model.modules() for hook in module._forward_hooks]


@pytest.mark.parametrize("cls", ALL)
def test_masks_come_by_themselves_after_the_batches(cls):
    model = TinyCNN()
    optimizer = sgd(model)
    pruner = cls(model, RULES, optimizer, model.make_input(), training_batches=3)
    pruner.compress()
    for step in range(3):
        assert gone(model.conv1) == [], step
        train(model, optimizer, 1)
    assert len(gone(model.conv1)) == 4
    assert gone(model.conv1) == (model.bn1.weight == 0).nonzero().flatten().tolist()
    assert not hooks_of(model)  # nobody watches any more
    kept = gone(model.conv1)
    train(model, optimizer, 2)
    assert gone(model.conv1) == kept
    pruner.strip()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("cls", ALL)
def test_calibrating_before_or_after_compress_is_the_same_and_leaves_the_model_alone(cls):
    torch.manual_seed(0)
    model = TinyCNN()
    twin = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    batches = [model.make_input(), model.make_input() * 2]
    arguments = {"loss": loss_of} if cls is TaylorFOWeightPruner else {}
    first = cls(model, RULES)
    first.calibrate(batches, **arguments)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not hooks_of(model)
    first.compress()
    second = cls(twin, RULES)
    second.compress()
    second.calibrate(batches, **arguments)
    assert gone(model.conv1) == gone(twin.conv1)
    assert len(gone(model.conv1)) == 4


def test_stripping_too_early_is_noticed(caplog):
    model = TinyCNN()
    pruner = ActivationAPoZRankPruner(model, RULES)
    pruner.compress()
    pruner.strip()
    assert "stripped before its masks were calculated" in caplog.text
    assert not hooks_of(model)


def test_statistics_are_part_of_the_state(tmp_path):
    def build():
        torch.manual_seed(0)
        model = TinyCNN()
        optimizer = sgd(model)
        pruner = ActivationAPoZRankPruner(model, RULES, optimizer, training_batches=2)
        pruner.compress()
        return model, optimizer, pruner

    model, optimizer, pruner = build()
    train(model, optimizer, 1)
    pruner.state().save(tmp_path)
    other, its, second = build()
    plain = {k: v for k, v in model.state_dict().items() if "lilliput" not in k}
    other.load_state_dict(plain)
    its.load_state_dict(optimizer.state_dict())
    second.load_state(CompressionState.load(tmp_path))
    for each, optim in ((model, optimizer), (other, its)):
        train(each, optim, 1)
    assert gone(model.conv1) == gone(other.conv1)
    assert len(gone(model.conv1)) == 4


def test_a_loss_that_was_forgotten_does_not_cost_what_was_collected():
    pruner = TaylorFOWeightPruner(TinyCNN(), RULES)
    batch = torch.ones(1, 3, 8, 8)
    pruner.calibrate([batch], loss=lambda model, x: model(x).square().sum())
    (wrapper,) = (x for x in pruner.get_modules_wrapper() if x.name == "conv1")
    before = wrapper.statistic
    with pytest.raises(ConfigError, match="needs a loss"):
        pruner.calibrate([batch])
    assert wrapper.statistic is before and before is not None


def test_calls_that_make_no_sense_are_refused():
    with pytest.raises(AlgorithmError, match="no data was collected from layer 'conv1'"):
        ActivationAPoZRankPruner(TinyCNN(), RULES).calibrate([])
    with pytest.raises(ConfigError, match="needs a loss"):
        TaylorFOWeightPruner(TinyCNN(), RULES).calibrate([torch.ones(1, 3, 8, 8)])
    with pytest.raises(StageError, match="before a model was bound"):
        ActivationAPoZRankPruner(config_list=RULES).calibrate([])


def test_activations_that_cannot_be_seen_are_named():
    model = nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match="not visible in the output of a module"):
        ActivationAPoZRankPruner(model, [{"op_names": ["0.weight_ih_l0"], "sparsity": 0.5}])


def test_batches_as_dicts_and_tuples_and_an_own_forward():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            return self.layer(x)

    batch = torch.randn(5, 3)
    scores = []
    for batches, forward in (
        ([{"x": batch}], None),
        ([(batch, "label")], None),
        ([{"inputs": batch}], lambda model, batch: model(batch["inputs"])),
    ):
        torch.manual_seed(0)
        pruner = ActivationMeanRankPruner(Named(), [{"sparsity": 0.5}])
        pruner.calibrate(batches, forward)
        scores.append(pruner.masker.score(pruner.get_modules_wrapper()[0]))
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])


def scores_under(scales, fused, overflow=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
    pruner = TaylorFOWeightPruner(model, [{"sparsity": 0.5, "op_names": ["0"]}], optimizer)
    pruner.compress()
    scaler = torch.amp.GradScaler("cpu")
    for index, scale in enumerate(scales):
        torch.manual_seed(index)
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        scaler.scale(loss).backward()
        scaler.update(scale)
        if overflow and index == 1:
            next(model.parameters()).grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update(scale)
    (wrapper,) = pruner.get_modules_wrapper()
    return wrapper.batches, pruner.masker.score(wrapper)


@pytest.mark.parametrize("overflow", [False, True])
def test_taylor_scores_do_not_depend_on_the_loss_scale_of_a_fused_optimizer(overflow):
    scales = [2.0**16, 2.0**17, 2.0**18]
    count, found = scores_under(scales, True, overflow)
    expected_count, expected = scores_under(scales, False, overflow)
    assert count == expected_count == 3 - overflow
    torch.testing.assert_close(found, expected)


def test_gradients_that_a_closure_computes_are_looked_at_after_it():
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = TaylorFOWeightPruner(model, [{"sparsity": 0.5}], optimizer, training_batches=2)
    pruner.compress()
    for factors in ([5.0, 0.0], [0.0, 1.0]):

        def closure(factors=factors):
            optimizer.zero_grad()
            loss = (model(torch.ones(1, 2)) * torch.tensor(factors)).sum()
            loss.backward()
            return loss

        before = model.weight.detach().clone()
        optimizer.step(closure=closure)
    (wrapper,) = pruner.get_modules_wrapper()
    effects = before * torch.tensor([[5.0], [1.0]])
    torch.testing.assert_close(pruner.masker.score(wrapper), effects.square().sum(1) / 2)


def test_batches_that_are_evaluated_do_not_count_as_training():
    model = TinyCNN()
    optimizer = sgd(model)
    pruner = ActivationAPoZRankPruner(model, RULES, optimizer, training_batches=5)
    pruner.compress()
    model.eval()
    with torch.no_grad():
        for _ in range(10):
            model(model.make_input())
    assert [w.batches for w in pruner.get_modules_wrapper()] == [0, 0]
    model.conv1.eval()
    train(model, optimizer, 2)
    assert [w.batches for w in pruner.get_modules_wrapper()] == [2, 2]


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_each_batch_once(reentrant):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = ActivationAPoZRankPruner(
        model, [{"sparsity": 0.5, "op_names": ["0"]}], optimizer, training_batches=9
    )
    pruner.compress()
    inputs = torch.randn(3, 4, requires_grad=True)
    checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
    assert [wrapper.batches for wrapper in pruner.get_modules_wrapper()] == [1]


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def squares(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize("cls", [*ALL, LeastSquaresPruner])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_that_is_not_a_number_is_named(cls, bad):
    good = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    spoilt = good[1].clone()
    spoilt[2, 1, 4, 4] = bad
    needs = {"loss": squares} if cls is TaylorFOWeightPruner else {}
    pruner = cls(plain(), RULES, example_inputs=good[0])
    with pytest.raises(
        AlgorithmError, match=r"calibration batch 2: the data collected from layer '[03]'"
    ):
        pruner.calibrate([good[0], spoilt], **needs)
    with pytest.raises(StageError, match="missing"):  # nothing was calibrated
        pruner.compress()
        pruner.export_model("nowhere.safetensors")
    pruner.calibrate(good, **needs)
    other = cls(plain(), RULES, example_inputs=good[0])
    other.calibrate(good, **needs)
    other.compress()
    for one, two in zip(pruner.get_modules_wrapper(), other.get_modules_wrapper(), strict=True):
        assert torch.equal(one.weight_mask, two.weight_mask)


@pytest.mark.parametrize("cls", ALL)
def test_in_training_a_batch_that_is_not_a_number_does_not_count(cls):
    """As in mixed precision, where the first gradients are often infinite and the step is left out."""
    model, twin = plain(), plain()
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.0)
        pruner = cls(each, RULES, optimizer, training_batches=2)
        pruner.compress()
        for batch in (x, x * float("inf"), 2 * x) if each is model else (x, 2 * x):
            before = [p.detach().clone() for p in each.parameters()]
            optimizer.zero_grad()
            squares(each, batch).backward()
            optimizer.step()
            with torch.no_grad():
                for parameter, value in zip(each.parameters(), before, strict=True):
                    if not parameter.isfinite().all():
                        parameter.copy_(value)
    assert gone(model[0]) == gone(twin[0]) != []
