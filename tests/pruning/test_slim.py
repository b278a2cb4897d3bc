"""Network slimming: the penalty, and when the masks come."""

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.frameworks.torch.lab import sgd, train
from lilliput.testing import TinyCNN
from lilliput.torch import SlimPruner

RULES = [{"total_sparsity": 0.5}]


def test_the_penalty_is_added_to_the_gradient_before_each_step():
    model = TinyCNN()
    twin = TinyCNN()
    twin.load_state_dict(model.state_dict())
    nn.init.normal_(model.bn1.weight)
    twin.bn1.load_state_dict(model.bn1.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, twin)]
    pruner = SlimPruner(model, RULES, optimizers[0], training_epochs=1, scale=0.01)
    pruner.compress()
    for each, optimizer in zip((model, twin), optimizers, strict=True):
        each(each.make_input()).square().sum().backward()
        before = each.bn1.weight.detach().clone()
        optimizer.step()
    expected = twin.bn1.weight.detach() - 0.1 * 0.01 * before.sign()
    torch.testing.assert_close(model.bn1.weight.detach(), expected)
    torch.testing.assert_close(model.conv1.weight, twin.conv1.weight)  # only norms are penalized


def test_masks_come_at_the_epoch_and_the_penalty_ends():
    model = TinyCNN()
    optimizer = sgd(model)
    pruner = SlimPruner(model, RULES, optimizer, model.make_input(), training_epochs=2)
    pruner.compress()
    for epoch in range(2):
        pruner.update_epoch(epoch)
        train(model, optimizer, 2)
        assert not (model.bn1.weight == 0).any()
        assert pruner.masker.is_penalizing
    pruner.update_epoch(2)
    assert not pruner.masker.is_penalizing
    zeros = int((model.bn1.weight == 0).sum() + (model.bn2.weight == 0).sum())
    assert zeros == 9
    lost = (model.conv1.weight.detach().flatten(1) == 0).all(1)
    assert torch.equal(lost, model.bn1.weight == 0)
    train(model, optimizer, 2)
    pruner.strip()
    assert torch.equal(lost, model.bn1.weight == 0)
    assert not optimizer._optimizer_step_pre_hooks


def test_the_penalty_needs_an_optimizer():
    pruner = SlimPruner(TinyCNN(), RULES, training_epochs=2)
    pruner.compress()
    with pytest.raises(StageError, match="works through the optimizer"):
        pruner.update_epoch(0)


@pytest.mark.parametrize("arguments", [{"training_epochs": -1}, {"scale": -1.0}])
def test_arguments_out_of_range_are_refused(arguments):
    model = TinyCNN()
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        SlimPruner(model, RULES, sgd(model), **arguments)


def test_an_epoch_that_is_no_number_is_refused():
    pruner = SlimPruner(TinyCNN(), RULES)
    pruner.compress()
    with pytest.raises(AlgorithmError, match="update_epoch received"):
        pruner.update_epoch("1")


def test_stripping_before_the_epoch_is_noticed(caplog):
    model = TinyCNN()
    pruner = SlimPruner(model, RULES, sgd(model), training_epochs=2)
    pruner.compress()
    pruner.strip()
    assert "SlimPruner: stripped before" in caplog.text


def under_a_scaler(fused, closure=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=not closure)
    pruner = SlimPruner(model, [{"sparsity": 0.5}], optimizer, training_epochs=2, scale=0.05)
    pruner.compress()
    pruner.update_epoch(0)
    inputs, targets = torch.randn(8, 3, 2, 2), torch.randint(3, (8,))

    def backward():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        return loss

    for _ in range(3):
        if closure:
            optimizer.step(backward)
        else:
            backward()
            scaler.step(optimizer)
            scaler.update()
    return model[1].weight.detach()


def test_the_penalty_is_the_same_when_a_fused_optimizer_divides_by_the_loss_scale():
    torch.testing.assert_close(under_a_scaler(fused=True), under_a_scaler(fused=False))


def test_the_penalty_reaches_gradients_that_a_closure_computes():
    plain = under_a_scaler(fused=False)
    torch.testing.assert_close(under_a_scaler(fused=False, closure=True), plain)
