"""RigL: where connections move, against a loop that is written out here."""

import copy
import math

import numpy as np
import pytest
import torch
from digits_training import accuracy, network, sparsity, train
from torch import nn
from two_layers import batches, gradients, one_step, two_layers

from lilliput.core.state import CompressionState
from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.ops.erk import erk_counts
from lilliput.torch import AGPPruner, LevelPruner, RigLPruner

LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-3


def reference(weights, masks, steps, every, end, in_groups=False):
    """Yield weights and masks after each step of plain NumPy; of 2:5 connections, if in groups."""
    weights = [w * m for w, m in zip(weights, masks, strict=True)]
    speed = [np.zeros_like(w) for w in weights]
    for step, x in enumerate(batches(steps), 1):
        dense = gradients(weights, x.numpy())
        for i, mask in enumerate(masks):
            speed[i] = MOMENTUM * speed[i] + dense[i] * mask + DECAY * weights[i]
            weights[i] = weights[i] - LR * speed[i]
        if step % every == 0 and step < end:
            for i, mask in enumerate(masks):
                connected = np.flatnonzero(mask)
                count = round(0.15 * (1 + math.cos(math.pi * step / end)) * len(connected))
                by_size = connected[np.argsort(np.abs(weights[i]).ravel()[connected])]
                masks[i] = np.zeros(mask.size)
                masks[i][by_size[count:]] = 1
                wanted = np.where(masks[i] == 1, np.inf, np.abs(dense[i]).ravel())
                rows = wanted.reshape(-1, 5) if in_groups else wanted[None]
                top = np.argsort(-rows, axis=1)[:, : 2 if in_groups else len(connected)]
                np.put_along_axis(masks[i].reshape(rows.shape), top, 1, axis=1)
                masks[i] = masks[i].reshape(weights[i].shape)
                weights[i], speed[i] = weights[i] * masks[i], speed[i] * masks[i]
        yield weights, masks


@pytest.mark.parametrize(
    ("rule", "parts"),
    [({"total_sparsity": 0.8}, 1), ({"total_sparsity": 0.8}, 2), ({"granularity": "2:5"}, 1)],
)
def test_each_step_is_that_of_the_paper(rule, parts):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    before = [p.detach().numpy().copy() for p in model.parameters()]
    in_groups = "granularity" in rule
    pruner = RigLPruner(model, [rule], optimizer, training_steps=40, update_every=4)
    pruner.compress()
    masks = [w.weight_mask.numpy().copy() for w in pruner.get_modules_wrapper()]
    first = [mask.copy() for mask in masks]
    counts = [240, 120] if in_groups else erk_counts([(30, 20), (10, 30)], 180)
    assert [int(m.sum()) for m in masks] == counts
    wanted = reference(before, masks, 36, 4, 0.75 * 40, in_groups)
    for step, x in enumerate(batches(36), 1):
        one_step(model, optimizer, x, parts)
        weights, masks = next(wanted)
        for i, wrapper in enumerate(pruner.get_modules_wrapper()):
            message = f"step {step}, layer {i}"
            np.testing.assert_array_equal(wrapper.weight_mask.numpy(), masks[i], message)
            np.testing.assert_allclose(
                wrapper.weight.detach().numpy(), weights[i], atol=1e-10, err_msg=message
            )
            if in_groups:
                assert (masks[i].reshape(-1, 5).sum(1) == 2).all()
        assert [int(m.sum()) for m in masks] == counts
    moved = [int((a != b).sum()) for a, b in zip(first, masks, strict=True)]
    assert all(moved), "the test needs connections that move"


def test_a_compiled_model_moves_the_same_connections():
    masks = []
    for is_compiled in (False, True):
        model = two_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        pruner = RigLPruner(
            model, [{"sparsity": 0.8}], optimizer, training_steps=40, update_every=3
        )
        pruner.compress()
        run = torch.compile(model, backend="aot_eager") if is_compiled else model
        for x in batches(7):
            optimizer.zero_grad()
            (run(x) - x[:, :10].sin()).square().sum().backward()
            optimizer.step()
        masks.append([w.weight_mask.clone() for w in pruner.get_modules_wrapper()])
    torch._dynamo.reset()
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))


@pytest.mark.parametrize("stop", [5, 6])
def test_a_resumed_training_is_one_that_never_stopped(stop, tmp_path):
    def make():
        model = two_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        pruner = RigLPruner(
            model, [{"sparsity": 0.8}], optimizer, training_steps=40, update_every=3
        )
        pruner.compress()
        return model, optimizer, pruner

    given = batches(14)
    model, optimizer, pruner = make()
    for x in given[:stop]:
        one_step(model, optimizer, x)
    pruner.state().save(tmp_path / "state")
    other, its_optimizer, second = make()
    other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    second.load_state(CompressionState.load(tmp_path / "state"))
    for x in given[stop:]:
        one_step(model, optimizer, x)
        one_step(other, its_optimizer, x)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_blocks_move_as_a_whole():
    model = nn.Linear(16, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = {"sparsity": 0.75, "granularity": [4, 2]}
    pruner = RigLPruner(model, [rule], optimizer, training_steps=100, update_every=2)
    pruner.compress()
    masks = []
    for _ in range(6):
        optimizer.zero_grad()
        x = torch.randn(8, 16)
        (model(x) - x[:, :8]).square().sum().backward()
        optimizer.step()
        mask = pruner.get_modules_wrapper()[0].weight_mask
        blocks = mask.reshape(2, 4, 8, 2).transpose(1, 2).flatten(2)
        assert bool((blocks == blocks[..., :1]).all())
        assert int(mask.sum()) == 32
        masks.append(mask.clone())
    assert not torch.equal(masks[0], masks[-1])


def test_new_connections_start_at_zero_without_momentum():
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    pruner = RigLPruner(model, [{"sparsity": 0.9}], optimizer, training_steps=100, update_every=2)
    pruner.compress()
    grown = 0
    wrapper = pruner.get_modules_wrapper()[0]
    for x in batches(10):
        before = wrapper.weight_mask.clone()
        one_step(model, optimizer, x)
        new = (wrapper.weight_mask == 1) & (before == 0)
        state = optimizer.state[wrapper.weight]
        for tensor in (wrapper.weight.detach(), state["exp_avg"], state["exp_avg_sq"]):
            assert bool((tensor[new] == 0).all())
            assert bool((tensor[wrapper.weight_mask == 0] == 0).all())
        grown += int(new.sum())
    assert grown


@pytest.mark.parametrize(
    ("make", "key", "fresh"),
    [
        (lambda p: torch.optim.Rprop(p, lr=0.02), "step_size", 0.02),
        (lambda p: torch.optim.Rprop(p, lr=0.02), "prev", 0.0),
        (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1), "sum", 0.1),
    ],
)
def test_the_optimizer_treats_new_connections_as_new_weights_and_loading_changes_nothing(
    make, key, fresh, tmp_path
):
    model = two_layers()
    optimizer = make(model.parameters())
    pruner = RigLPruner(model, [{"sparsity": 0.9}], optimizer, training_steps=100, update_every=2)
    pruner.compress()
    grown = 0
    wrapper = pruner.get_modules_wrapper()[0]
    for x in batches(10):
        before = wrapper.weight_mask.clone()
        one_step(model, optimizer, x)
        record = optimizer.state[wrapper.weight][key]
        new = (wrapper.weight_mask == 1) & (before == 0)
        assert bool((record[new] == fresh).all())
        grown += int(new.sum())
        record[wrapper.weight_mask == 0] = 0.5  # as if it had been loaded
        held = record.clone()
        pruner.state().save(tmp_path)
        pruner.load_state(tmp_path)
        assert torch.equal(record, held)
        record[wrapper.weight_mask == 0] = fresh
    assert grown


class Third(torch.optim.Optimizer):
    """Divides by a mean square that starts with a number of its own, as TensorFlow's RMSprop does."""

    def __init__(self, params, lr=0.01, first=1.0, momentum=0.0):
        self.first = first  # a setting outside the groups
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["square"] = torch.full_like(p, self.first)
                    state.update(old=p.clone(), rows=torch.eye(len(p), dtype=p.dtype))
                state["square"].mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
                p.addcdiv_(p.grad, state["square"].sqrt(), value=-group["lr"])


class Early(Third):
    """Makes its state at once."""

    def __init__(self, params, **settings):
        super().__init__(params, **settings)
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] = {"square": torch.full_like(p, self.first)}


class Wrapped(Third):
    """Cannot be made from its groups alone."""

    def __init__(self, params, inner):
        super().__init__(params)
        self.inner = inner(self.param_groups)


class Random(Third):
    """Starts with other numbers for each weight."""

    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p].setdefault("noise", torch.rand_like(p))


@pytest.mark.parametrize("kind", [Third, Early])
def test_another_optimizer_remembers_of_new_connections_what_it_starts_with(kind):
    model = nn.Linear(8, 8)
    optimizer = kind(model.parameters(), lr=0.05, first=0.5)
    pruner = RigLPruner(model, [{"sparsity": 0.8}], optimizer, training_steps=100, update_every=2)
    pruner.compress()
    wrapper = pruner.get_modules_wrapper()[0]
    grown = 0
    for x in torch.randn(10, 16, 8).unbind():
        before = wrapper.weight_mask.clone()
        optimizer.zero_grad()
        (model(x) - x.flip(1)).square().sum().backward()
        optimizer.step()
        new = (wrapper.weight_mask == 1) & (before == 0)
        state = optimizer.state[wrapper.weight]
        assert bool((state["square"][new] == 0.5).all())
        if kind is Third:
            assert bool((state["old"][new] == 0).all())
            assert torch.equal(state["rows"], torch.eye(8))  # not one for each weight
        grown += int(new.sum())
    assert grown


@pytest.mark.parametrize(
    "make",
    [lambda p: Wrapped(p, torch.optim.SGD), Random],
    ids=["wrapped", "random"],
)
def test_an_optimizer_whose_first_state_is_unknown_is_refused(make):
    model = nn.Linear(8, 8)
    rules = [{"sparsity": 0.8}]
    pruner = RigLPruner(model, rules, make(model.parameters()), training_steps=100)
    before = model.weight.detach().clone()
    with pytest.raises(ConfigError, match="what it remembers of a new weight"):
        pruner.compress()
    assert torch.equal(model.weight, before) and type(model) is nn.Linear
    # Weights that do not come back need no memory.
    LevelPruner(model, rules, make(model.parameters())).compress()


def test_without_an_optimizer_it_says_that_it_sees_no_gradients():
    pruner = RigLPruner(nn.Linear(4, 4), [{"sparsity": 0.5}], training_steps=10, update_every=2)
    pruner.compress()
    pruner.step()
    with pytest.raises(StageError, match="needs an optimizer for this"):
        pruner.step()


def test_digits_are_read_with_a_tenth_of_the_weights_from_the_first_step():
    """Within 3 points of AGP, which trains all weights at first, and better than if nothing moved."""
    found, steps = {}, 15 * 38
    for name in ("agp", "rigl", "fixed"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if name == "agp":
            pruner = AGPPruner(model, [{"final_sparsity": 0.9, "end_epoch": 8}], optimizer)
        else:
            every = 5 if name == "rigl" else steps
            pruner = RigLPruner(
                model, [{"total_sparsity": 0.9}], optimizer, steps, update_every=every
            )
        pruner.compress()
        train(model, optimizer, 15, pruner.update_epoch)
        plain = pruner.strip()
        assert sparsity(plain) == pytest.approx(0.9, abs=1e-3)
        found[name] = accuracy(plain)
    assert found["rigl"] >= found["agp"] - 0.03, found
    assert found["rigl"] > found["fixed"], found


def short_run():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    rules = [{"op_types": ["Linear"], "sparsity": 0.5}]
    pruner = RigLPruner(model, rules, optimizer, 8, update_every=1, stop_at=0.5)
    pruner.compress()
    return model, optimizer, pruner


def test_a_state_from_after_the_last_update_moves_nothing():
    model, optimizer, pruner = short_run()
    for x in batches(6):
        one_step(model, optimizer, x)
    other, steps, loaded = short_run()
    loaded.load_state(pruner.state())
    one_step(other, steps, batches(1)[0])
    for mine, its in zip(loaded.get_modules_wrapper(), pruner.get_modules_wrapper(), strict=True):
        assert torch.equal(mine.weight_mask, its.weight_mask)
    hidden = loaded.get_modules_wrapper()[0]
    assert not other[0].weight.grad[hidden.weight_mask == 0].any()


def test_weights_that_are_not_numbers_are_refused():
    model, optimizer, pruner = short_run()
    with torch.no_grad():
        model[0].weight[pruner.get_modules_wrapper()[0].weight_mask == 1] = float("nan")
    optimizer.zero_grad()
    (torch.nan_to_num(model[0].weight) * 2).sum().backward()
    with pytest.raises(AlgorithmError, match="'0' has NaN among its weights"):
        optimizer.step()


def test_layers_of_another_optimizer_are_refused():
    """Their steps would use gradients that are meant to be seen only."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    pruner = RigLPruner(model, [{"sparsity": 0.5}], optimizer, training_steps=10)
    with pytest.raises(ConfigError, match="does not train layer '1'"):
        pruner.compress()
    assert not pruner.is_wrapped and type(model[1]) is nn.Linear
