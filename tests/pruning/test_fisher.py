"""FisherPruner against its formula, alone and on a schedule."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.torch import AGPPruner, FisherPruner


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(count=4, size=16):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 6, generator=generator),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def effects(model, batch):
    """Return (g w)² of each linear layer, by gradients that autograd computes outside of Lilliput."""
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    gradients = torch.autograd.grad(loss_of(model, batch), weights)
    return [
        (g.numpy().astype(np.float64) * w.detach().numpy()) ** 2
        for g, w in zip(gradients, weights, strict=True)
    ]


def zeros(model):
    return [(layer.weight == 0).numpy() for layer in model if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize("total", [True, False])
def test_removes_the_weights_with_the_smallest_mean_of_squares(total):
    plain, model = network(), network()
    seen = batches()
    means = [np.mean(x, axis=0) for x in zip(*(effects(plain, b) for b in seen), strict=True)]
    pruner = FisherPruner(model, [{"total_sparsity" if total else "sparsity": 0.5}])
    pruner.calibrate(seen, loss=loss_of)
    pruner.compress()
    every = np.concatenate([x.ravel() for x in means])
    for mask, mean in zip(zeros(model), means, strict=True):
        border = np.median(every if total else mean)
        np.testing.assert_array_equal(mask, mean < border)


def test_a_unit_that_nothing_reads_is_pruned_first():
    model = network()
    with torch.no_grad():
        model[2].weight[:, 5] = 0  # no layer reads unit 5
        model[0].weight[5] = 100  # which magnitude would keep
    rule = {"total_sparsity": (6 + 3) / (48 + 24)}
    pruner = FisherPruner(model, [rule])
    pruner.calibrate(batches(), loss=loss_of)
    first, second = zeros(pruner.compress())
    assert first[5].all()
    assert second[:, 5].all()
    assert first.sum() + second.sum() == 9


@pytest.mark.parametrize("steps", [2, 7])
def test_a_schedule_averages_the_newest_gradients_since_its_last_update(steps):
    model, plain = network(), network()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (model, plain)]
    rule = {"initial_sparsity": 0.25, "total_sparsity": 0.75, "end_epoch": 3}
    params = {"training_batches": 2}
    pruner = AGPPruner(model, [rule], optimizers[0], "fisher", pruning_params=params)
    pruner.compress()
    weights = [plain[0].weight, plain[2].weight]
    masks = [np.ones((8, 6)), np.ones((3, 8))]
    sums, count = [0.0, 0.0], 0
    for epoch in range(4):
        pruner.update_epoch(epoch)
        is_due, zeros_wanted = True, round(72 * (0.75 - 0.5 * (1 - epoch / 3) ** 3))
        for batch in [None, *batches(steps)]:  # masks may be due before the first step
            if batch is not None:
                for net, optimizer in zip((model, plain), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss_of(net, batch).backward()
                squares = [(w.grad.double() * w.detach()).numpy() ** 2 for w in weights]
                sums, count = [x + y for x, y in zip(sums, squares, strict=True)], count + 1
                if count == 4:  # twice the number to average over
                    sums, count = [x / 2 for x in sums], 2
                for optimizer in optimizers:
                    optimizer.step()
            if is_due and count >= 2:
                scores = [np.where(m == 0, -np.inf, x) for x, m in zip(sums, masks, strict=True)]
                border = np.sort(np.concatenate([x.ravel() for x in scores]))[zeros_wanted - 1]
                masks = [np.where(x <= border, 0.0, 1.0) for x in scores]
                sums, count, is_due = [0.0, 0.0], 0, False
            with torch.no_grad():
                for weight, mask in zip(weights, masks, strict=True):
                    weight *= torch.from_numpy(mask).float()
        for found, mask in zip(zeros(model), masks, strict=True):
            np.testing.assert_array_equal(found, mask == 0)
    assert sum(x.sum() for x in zeros(model)) == 54


def test_zeros_go_before_weights_without_a_gradient():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 2.0, 0.0, 1.0]]))
    pruner = FisherPruner(model, [{"sparsity": 0.25}])
    pruner.calibrate([torch.tensor([[0.0, 0.0, 1.0, 1.0]])], loss=lambda net, x: net(x).sum())
    assert pruner.compress().weight.tolist() == [[3.0, 2.0, 0.0, 1.0]]


def test_a_zero_does_not_count_against_its_block():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0, 0.1, 0.1]]))
    pruner = FisherPruner(model, [{"sparsity": 0.5, "granularity": [1, 2]}])
    pruner.calibrate([torch.ones(1, 4)], loss=lambda net, x: net(x).sum())
    assert pruner.compress().weight.ne(0).tolist() == [[True, False, False, False]]


def test_a_loss_is_needed():
    with pytest.raises(ValueError, match="needs a loss"):
        FisherPruner(network(), [{"sparsity": 0.5}]).calibrate(batches())


def test_squares_that_overflow_are_refused():
    model = nn.Linear(2, 2, bias=False)
    pruner = FisherPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(AlgorithmError, match="batch 1: .* holds NaN or infinity"):
        pruner.calibrate([torch.tensor([[1e20, 2e20]])], loss=lambda net, x: net(x).sum())


def test_a_layer_without_a_gradient_is_named(caplog):
    frozen = network()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(AlgorithmError, match="layer '0': .* it is frozen, or the loss does not"):
        FisherPruner(frozen, [{"sparsity": 0.5}]).calibrate(batches(), loss=loss_of)
    optimizer = torch.optim.SGD(frozen[2].parameters(), 0.1)
    rule = {"total_sparsity": 0.5, "initial_sparsity": 0.5}
    pruner = AGPPruner(frozen, [rule], optimizer, "fisher")
    pruner.compress()
    for batch in batches(2):
        loss_of(frozen, batch).backward()
        optimizer.step()
    pruner.strip()
    assert "20 of 20 batches are missing for layer '0'" in caplog.text


def test_statistics_are_dropped_when_the_masks_are_final():
    pruner = FisherPruner(network(), [{"sparsity": 0.5}])
    pruner.calibrate(batches(), loss=loss_of)
    assert all(wrapper.statistic is not None for wrapper in pruner.get_modules_wrapper())
    pruner.compress()
    assert all(wrapper.statistic is None for wrapper in pruner.get_modules_wrapper())


def scheduled(model, optimizer, batches=2):
    rules = [{"final_sparsity": 0.75, "end_epoch": 3}]
    params = {"training_batches": batches}
    pruner = AGPPruner(model, rules, optimizer, "fisher", pruning_params=params)
    pruner.compress()
    return pruner


def train_an_epoch(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()


def test_a_schedule_without_an_optimizer_is_refused():
    pruner = scheduled(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), None)
    with pytest.raises(StageError, match="FisherMasker reads gradients.*bind_optimizer"):
        pruner.update_epoch(0)


def test_a_schedule_names_the_layer_that_holds_up_all_others():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    pruner = scheduled(model, optimizer)
    pruner.update_epoch(0)
    train_an_epoch(model, optimizer)
    with pytest.raises(AlgorithmError, match="layer '0' cannot be scored.*frozen.*exclude it"):
        pruner.update_epoch(1)


def test_nothing_is_exported_before_the_first_masks(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    pruner, path = scheduled(model, optimizer, batches=4), tmp_path / "m.safetensors"
    for epoch in range(2):  # the criterion sees three batches in an epoch
        pruner.update_epoch(epoch)
        if epoch:
            with pytest.raises(StageError, match="1 of 4 batches are missing for layer '0'"):
                pruner.export_model(path)
        train_an_epoch(model, optimizer)
    pruner.update_epoch(2)
    pruner.export_model(path)


@pytest.mark.parametrize(
    ("loss", "received"),
    [
        (lambda model, x: model(x), r"a tensor of shape \(4, 3\)"),
        (lambda model, x: 1.5, "float 1.5"),
        (lambda model, x: model(x).sum().detach(), "a tensor without a gradient"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_refused(loss, received):
    model = nn.Linear(6, 3)
    pruner = FisherPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(ConfigError, match=rf"loss\(model, batch\) returned {received}"):
        pruner.calibrate([torch.randn(4, 6)], loss=loss)
    with pytest.raises(ConfigError, match=r"calibrate\(\) received int"):
        pruner.calibrate(5, loss=loss)


def test_a_refused_constructor_leaves_no_hooks_on_the_optimizer():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match="training_batches"):
        FisherPruner(model, [{"sparsity": 0.5}], optimizer, training_batches=0)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
