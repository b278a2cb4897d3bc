"""Movement pruning: scores and masks, against a loop that is written out here."""

import copy

import numpy as np
import pytest
import torch
from digits_training import accuracy, network, sparsity, train
from torch import nn
from two_layers import batches, gradients, one_step, two_layers

from lilliput.core.state import CompressionState
from lilliput.errors import AlgorithmError, StageError
from lilliput.testing import Subject, pruner_checks
from lilliput.torch import AGPPruner, MovementPruner, STRPruner, measure

LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-3
WARM, COOL = 3, 9


def growth(step):
    return 0 if step < WARM else 1 - (1 - (min(step, COOL) - WARM) / (COOL - WARM)) ** 3


def reference(mode, asked, regular, scale):
    """Yield weights, scores and masks after each step of plain NumPy."""
    weights = [p.detach().numpy().copy() for p in two_layers().parameters()]
    scores = [np.zeros_like(w) for w in weights]
    masks = [np.ones_like(w) for w in weights]
    speed = [[np.zeros_like(w) for w in weights] for _ in range(2)]
    for step, x in enumerate(batches(14), 1):
        dense = gradients([w * m for w, m in zip(weights, masks, strict=True)], x.numpy())
        for i, mask in enumerate(masks):
            share = 1 / (1 + np.exp(-scores[i] * scale))
            pull = regular * growth(step - 1) / 2 / mask.size * share * (1 - share) * scale
            slopes = dense[i] * mask + DECAY * weights[i], dense[i] * weights[i] * scale + pull
            for held, slope in zip(speed, slopes, strict=True):
                held[i] = MOMENTUM * held[i] + slope
            weights[i] = weights[i] - LR * speed[0][i]
            scores[i] = scores[i] - LR * speed[1][i]
            if mode != "soft":
                count = round(mask.size * asked * growth(step))
                rank = scores[i].copy()
                if mode == "2:5":  # the two largest of five never go
                    top = np.argsort(-rank.reshape(-1, 5), axis=1)[:, :2]
                    np.put_along_axis(rank.reshape(-1, 5), top, np.inf, axis=1)
                masks[i] = np.ones(mask.size)
                masks[i][np.argsort(rank, axis=None)[:count]] = 0
                masks[i] = masks[i].reshape(mask.shape)
            else:
                kept = 1 / (1 + np.exp(-scores[i] * scale)) > asked * growth(step)
                masks[i] = kept.astype(float)
        yield weights, scores, masks


@pytest.mark.parametrize(
    ("mode", "asked", "regular", "scale"),
    [
        ("hard", 0.8, 0.0, 1.0),
        ("hard", 0.8, 5.0, 2.0),
        ("2:5", 0.6, 5.0, 1.0),
        ("soft", 0.49, 400.0, 1.0),
    ],
)
def test_each_step_is_that_of_the_paper(mode, asked, regular, scale):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    pruner = MovementPruner(
        model,
        [{"granularity": mode} if mode == "2:5" else {"sparsity": asked}],
        optimizer,
        WARM,
        COOL,
        movement_mode="soft" if mode == "soft" else "hard",
        regular_scale=regular,
        score_scale=scale,
    )
    pruner.compress()
    wanted = reference(mode, asked, regular, scale)
    for step, x in enumerate(batches(14), 1):
        one_step(model, optimizer, x)
        weights, scores, masks = next(wanted)
        for i, wrapper in enumerate(pruner.get_modules_wrapper()):
            message = f"step {step}, layer {i}"
            for found, value in (
                (wrapper.weight, weights[i]),
                (wrapper.movement_score, scores[i]),
                (wrapper.weight_mask, masks[i]),
                (wrapper.module.weight, weights[i] * masks[i]),
            ):
                np.testing.assert_allclose(
                    found.detach().numpy(), value, atol=1e-9, err_msg=message
                )
            if mode != "soft":
                zeros = int((wrapper.weight_mask == 0).sum())
                assert zeros == round(masks[i].size * asked * growth(step))
    pruned = [float((m == 0).mean()) for m in masks]
    assert 0.1 < min(pruned) <= max(pruned) < 0.95, f"the test needs a mix: {pruned}"
    if mode == "2:5":
        assert all((m.reshape(-1, 5).sum(1) == 2).all() for m in masks)


def test_blocks_have_one_score_each():
    model = nn.Linear(8, 6, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = MovementPruner(model, [{"sparsity": 0.5, "granularity": [2, 4]}], optimizer, 0, 1)
    pruner.compress()
    weight = model.get_parameter("weight").detach().numpy().copy()
    x = torch.randn(5, 8, dtype=torch.float64)
    optimizer.zero_grad()
    model(x).square().sum().backward()
    gradient = model.get_parameter("weight").grad.numpy().copy()
    optimizer.step()
    wrapper = pruner.get_modules_wrapper()[0]
    score = -0.1 * (gradient * weight).reshape(3, 2, 2, 4).sum((1, 3))
    np.testing.assert_allclose(wrapper.movement_score.detach().numpy(), score, atol=1e-12)
    keep = score > np.sort(score, axis=None)[2]
    np.testing.assert_array_equal(wrapper.weight_mask.numpy(), keep.repeat(2, 0).repeat(4, 1))


def test_a_resumed_training_is_one_that_never_stopped(tmp_path):
    def make():
        model = two_layers()
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        pruner = MovementPruner(model, [{"sparsity": 0.8}], optimizer, 2, 9, regular_scale=1.0)
        pruner.compress()
        return model, optimizer, pruner

    given = batches(12)
    model, optimizer, pruner = make()
    for x in given[:6]:
        one_step(model, optimizer, x)
    pruner.state().save(tmp_path / "state")
    other, its_optimizer, second = make()
    other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    second.load_state(CompressionState.load(tmp_path / "state"))
    for x in given[6:]:
        one_step(model, optimizer, x)
        one_step(other, its_optimizer, x)
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_hard_masks_stay_once_it_is_told_to():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    pruner = MovementPruner(model, [{"sparsity": 0.8}], optimizer, 0, 2)
    pruner.compress()
    for x in batches(3):
        one_step(model, optimizer, x)
    pruner.harden()
    masks = [w.weight_mask.clone() for w in pruner.get_modules_wrapper()]
    for x in batches(3):
        one_step(model, optimizer, x)
    for wrapper, mask in zip(pruner.get_modules_wrapper(), masks, strict=True):
        assert torch.equal(wrapper.weight_mask, mask)
        assert bool((wrapper.weight[mask == 0] == 0).all())
        assert int((wrapper.weight == 0).sum()) == round(mask.numel() * 0.8)


def soft_mode(model, rules, optimizer):
    return MovementPruner(model, rules, optimizer, 0, 2, movement_mode="soft", regular_scale=10.0)


@pytest.mark.parametrize(
    "check",
    [x for x in pruner_checks() if x.__name__.endswith(("round_trip", "outputs", "compile"))],
    ids=lambda check: check.__name__,
)
def test_the_soft_mode_conforms(check):
    check(Subject(MovementPruner, make=soft_mode))


def test_digits_at_ninety_percent_are_read_as_well_as_with_gradual_pruning():
    found = {}
    for name in ("agp", "movement"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train(model, optimizer, 5)  # movement pruning is for fine-tuning
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if name == "agp":
            pruner = AGPPruner(model, [{"final_sparsity": 0.9, "end_epoch": 8}], optimizer)
        else:
            pruner = MovementPruner(model, [{"sparsity": 0.9}], optimizer, 38, 8 * 38)
        pruner.compress()
        train(model, optimizer, 15, pruner.update_epoch)
        plain = pruner.strip()
        assert sparsity(plain) == pytest.approx(0.9, abs=1e-3)
        found[name] = accuracy(plain)
    assert found["movement"] >= found["agp"] - 0.02, found


def test_a_receipt_counts_what_the_model_computes_with():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    pruner = MovementPruner(model, [{"sparsity": 0.5}], optimizer, 0, 1)
    pruner.compress()
    one_step(model, optimizer, batches(1)[0])
    figures = measure(model, batches(1)[0])
    assert (figures.parameters, figures.nonzeros) == (900, 450)


def test_scores_that_nobody_trains_do_not_prune():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    pruner = MovementPruner(model, [{"sparsity": 0.5}], None, 0, 3)
    pruner.compress()
    one_step(model, optimizer, batches(1)[0])
    with pytest.raises(StageError, match="scores have not been trained"):
        pruner.step()


class Idle(nn.Module):
    """A model with a layer that has no part in the loss."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.used(x)


def test_a_layer_without_a_part_in_the_loss_is_not_pruned_by_position():
    model = Idle()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    pruner = MovementPruner(model, [{"sparsity": 0.5}], optimizer, 0, 3)
    pruner.compress()

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()

    step()
    step()
    masks = [wrapper.weight_mask for wrapper in pruner.get_modules_wrapper()]
    assert not masks[0].all() and masks[1].all()
    with pytest.raises(StageError, match="'idle': its scores have not been trained"):
        step()


def test_what_stops_before_the_end_of_its_schedule_says_so(tmp_path, caplog):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    pruner = MovementPruner(model, [{"sparsity": 0.5}], optimizer, 0, 3)
    pruner.compress()
    for x in batches(2):
        one_step(model, optimizer, x)
    with pytest.raises(StageError, match="step 2 of 3"):
        pruner.export_model(str(tmp_path / "model.safetensors"))
    pruner.strip()
    assert "stripped at step 2 of 3" in caplog.text


@pytest.mark.parametrize("cls", [MovementPruner, STRPruner])
def test_a_batch_that_is_not_a_number_is_not_what_prunes(cls):
    """All comparisons with NaN are false, so that everything would be pruned, or nothing."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    options = {"cool_down_beginning_step": 2} if cls is MovementPruner else {}
    rule = {"sparsity": 0.5} if cls is MovementPruner else {}
    pruner = cls(model, [rule], optimizer, **options)
    pruner.compress()
    masks = [w.weight_mask.clone() for w in pruner.get_modules_wrapper()]
    (x,) = batches(1)
    with pytest.raises(AlgorithmError, match="layer '0' has NaN among its .* in the last batch"):
        one_step(model, optimizer, x * float("nan"))
    for wrapper, mask in zip(pruner.get_modules_wrapper(), masks, strict=True):
        assert torch.equal(wrapper.weight_mask, mask)
