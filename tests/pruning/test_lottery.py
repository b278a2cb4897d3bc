"""LotteryTicketPruner: against the procedure written out in plain PyTorch, on real digits."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from lilliput.errors import ConfigError, StageError
from lilliput.pruning.lottery import rounds
from lilliput.torch import LotteryTicketPruner, LSQQuantizer

RULE = {"op_types": ["Linear"], "sparsity": 0.6, "prune_iterations": 3}


def data():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:300], dtype=torch.float32) / 16, torch.tensor(labels[:300])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def train_epoch(model, optimizer, epoch, hold=lambda: None):
    x, y = data()
    order = torch.randperm(300, generator=torch.Generator().manual_seed(epoch))
    for part in order.split(50):
        optimizer.zero_grad()
        F.cross_entropy(model.train()(x[part]), y[part]).backward()
        optimizer.step()
        hold()


def run(model, pruner, optimizer, epochs):
    for epoch in epochs:
        pruner.update_epoch(epoch)
        train_epoch(model, optimizer, epoch)


@pytest.mark.parametrize(
    ("rewind", "key"), [(0, "sparsity"), (2, "sparsity"), (0, "total_sparsity")]
)
def test_it_is_the_papers_procedure(rewind, key):
    model, per_round = net(), 2
    optimizer = sgd(model)
    rule = {"op_types": ["Linear"], key: 0.6, "prune_iterations": 3}
    pruner = LotteryTicketPruner(
        model, [rule], optimizer, epochs_per_round=per_round, rewind_epoch=rewind
    )
    pruner.compress()
    assert (pruner.rounds, pruner.epochs) == (3, rewind + 8)
    run(model, pruner, optimizer, range(pruner.epochs))

    plain = net()
    layers, masks = (plain[0], plain[3]), [torch.ones(24, 64), torch.ones(10, 24)]

    def hold():
        with torch.no_grad():
            for layer, mask in zip(layers, masks, strict=True):
                layer.weight.mul_(mask)
                if layer.weight.grad is not None:
                    layer.weight.grad.mul_(mask)

    theirs, epoch = sgd(plain), 0
    for _ in range(rewind):
        train_epoch(plain, theirs, epoch)
        epoch += 1
    early = [p.detach().clone() for p in plain.parameters()]
    for number in range(4):
        if number:
            share = 1 - 0.4 ** (number / 3)
            sizes = [layer.weight.detach().abs().flatten() for layer in layers]
            if key == "total_sparsity":
                border = torch.cat(sizes).sort().values[round(1776 * share) - 1]
                counts = [int((size <= border).sum()) for size in sizes]
            else:
                counts = [round(size.numel() * share) for size in sizes]
            for mask, size, count in zip(masks, sizes, counts, strict=True):
                mask.view(-1)[size.argsort(stable=True)[:count]] = 0
            with torch.no_grad():
                for parameter, value in zip(plain.parameters(), early, strict=True):
                    parameter.copy_(value)
            hold()
            theirs = sgd(plain)
        for _ in range(per_round):
            train_epoch(plain, theirs, epoch, hold)
            epoch += 1
    for ours, reference in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, reference, atol=1e-5)
    zeros = [int((w == 0).sum()) for w in (model[0].weight, model[3].weight)]
    assert sum(zeros) == 1066 and (zeros == [922, 144]) == (key == "sparsity")


@pytest.mark.parametrize("killed", [1, 3, 4, 6])
def test_a_run_that_was_killed_goes_on(tmp_path, killed):
    model = net()
    optimizer = sgd(model)
    settings = {"epochs_per_round": 2, "rewind_epoch": 1}
    pruner = LotteryTicketPruner(model, [RULE], optimizer, **settings)
    pruner.compress()
    run(model, pruner, optimizer, range(killed))
    pruner.state().save(tmp_path / "state")
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, pruner, optimizer, range(killed, pruner.epochs))

    other = net()
    its_optimizer = sgd(other)
    second = LotteryTicketPruner(other, [RULE], its_optimizer, **settings)
    second.compress()
    second.load_state(tmp_path / "state")
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    run(other, second, its_optimizer, range(killed, second.epochs))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_without_rewinding_the_trained_weights_stay():
    model = net()
    pruner = LotteryTicketPruner(model, [RULE], reset_weights=False)
    pruner.compress()
    with torch.no_grad():
        model[3].bias.add_(1)
        trained = model[3].weight.add_(1).clone()
    pruner.update_epoch(1)
    kept = model[3].weight != 0
    assert torch.equal(model[3].weight[kept], trained[kept]) and not bool(kept.all())
    assert pruner.get_modules_wrapper()[0].early_values is None


def test_everything_goes_back_and_the_optimizer_forgets():
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = sgd(model)
    pruner = LotteryTicketPruner(model, [{**RULE, "op_names": ["0"]}], optimizer)
    pruner.compress()
    run(model, pruner, optimizer, [0])
    assert optimizer.state
    pruner.update_epoch(1)
    assert not optimizer.state
    for parameter, value in zip(list(model.parameters())[1:], before[1:], strict=True):
        assert torch.equal(parameter, value)  # also what no rule names


@pytest.mark.parametrize(("sparsity", "count"), [(0.2, 1), (0.36, 2), (0.5, 4), (0.9, 11), (0, 1)])
def test_a_fifth_goes_in_each_round(sparsity, count):
    assert rounds(sparsity) == count
    model = nn.Linear(100, 10)
    pruner = LotteryTicketPruner(model, [{"sparsity": sparsity}])
    pruner.compress()
    left = 1000
    for epoch in range(pruner.epochs):
        pruner.update_epoch(epoch)
        now = int((model.weight != 0).sum())
        assert now >= 0.8 * left - 1
        left = now
    assert left == 1000 - round(1000 * sparsity)


def test_what_makes_no_sense_is_refused():
    for options, words in (
        ({"epochs_per_round": 0}, "epochs_per_round: received 0"),
        ({"rewind_epoch": -1}, "rewind_epoch: received -1"),
        ({"pruning_algorithm": "agp"}, "has no scores"),
    ):
        with pytest.raises(ConfigError, match=words):
            LotteryTicketPruner(nn.Linear(4, 4), [{"sparsity": 0.5}], **options)
    with pytest.raises(ConfigError, match="received both"):
        LotteryTicketPruner(nn.Linear(4, 4), [{"sparsity": 0.5, "total_sparsity": 0.5}])
    with pytest.raises(ConfigError, match="'sparsity' is missing"):
        LotteryTicketPruner(nn.Linear(4, 4), [{"prune_iterations": 2}])
    model = nn.Linear(4, 4)
    pruner = LotteryTicketPruner(model, [{"sparsity": 0.5}], rewind_epoch=2)
    pruner.compress()
    before = model.weight.detach().clone()
    with pytest.raises(StageError, match=r"update_epoch\(2\) was never called"):
        pruner.update_epoch(3)
    assert torch.equal(model.weight, before)


def train_and_check(model, first, pruner, optimizer, epochs):
    """Move every weight in each epoch; return the epochs that start rewound, with a new optimizer."""
    rewound = []
    for epoch in epochs:
        pruner.update_epoch(epoch)
        (weight,) = (p.detach() for p in model.parameters())  # reading model.weight would mask it
        kept = weight != 0
        assert torch.equal(kept, pruner.get_modules_wrapper()[0].weight_mask != 0)
        is_first = torch.equal(weight[kept], first[kept])
        assert is_first == (not optimizer.state)
        rewound += [epoch] if is_first else []
        model.weight.sum().backward()
        optimizer.step()
    return rewound


@pytest.mark.parametrize("per_round", [1, 2])
def test_a_round_that_rounds_to_no_new_zeros_goes_back_too(per_round):
    model = nn.Linear(4, 1, bias=False)  # 0, 1, 1, 2 and 2 zeros
    first = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    pruner = LotteryTicketPruner(model, [{"sparsity": 0.5}], optimizer, epochs_per_round=per_round)
    pruner.compress()
    epochs = range(pruner.epochs)
    rewound = train_and_check(model, first, pruner, optimizer, epochs)
    assert rewound == [epoch for epoch in epochs if epoch % per_round == 0]
    assert int((model.weight == 0).sum()) == 2


def test_an_epoch_that_is_announced_twice_or_after_the_last_round_does_not_go_back(tmp_path):
    def make():
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        pruner = LotteryTicketPruner(model, [{"sparsity": 0.5}], optimizer)
        pruner.compress()
        return model, pruner, optimizer

    model, pruner, optimizer = make()
    first = model.weight.detach().clone()
    again = [0, 1, 2, 2, 2, 3, 4, 5, 6]
    expected = [0, 1, 2, 3, 4]
    assert train_and_check(model, first, pruner, optimizer, again) == expected

    model, pruner, optimizer = make()
    train_and_check(model, first, pruner, optimizer, [0, 1, 2])
    pruner.state().save(tmp_path)
    other, second, its_optimizer = make()
    second.load_state(tmp_path)
    other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(optimizer.state_dict())
    assert train_and_check(other, first, second, its_optimizer, [2, 3, 4]) == [3, 4]


def test_what_another_compressor_learns_is_not_rewound():
    model = net()
    optimizer = sgd(model)
    LSQQuantizer(model, [{"op_types": ["Linear"], "quant_bits": 4}], optimizer).compress()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner = LotteryTicketPruner(model, [RULE], optimizer)
    pruner.compress()
    run(model, pruner, optimizer, [0])
    trained = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner.update_epoch(1)
    scales = {name for name in before if name.endswith("scale")}
    assert any("input" in name for name in scales) and any("weight" in name for name in scales)
    for name, p in model.named_parameters():
        now = p.detach()
        if name in scales:
            assert torch.equal(now, trained[name]) and not torch.equal(now, before[name])
        else:
            kept = now != 0
            assert torch.equal(now[kept], before[name][kept])
