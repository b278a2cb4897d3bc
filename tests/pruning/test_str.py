"""STR: learned thresholds, against a loop that is written out here."""

import copy

import numpy as np
import pytest
import torch
from digits_training import accuracy, network, sparsity, train
from torch import nn
from two_layers import batches, gradients, one_step, two_layers

from lilliput.core.state import CompressionState
from lilliput.errors import ConfigError
from lilliput.torch import AGPPruner, STRPruner

LR, MOMENTUM, DECAY, PULL, START = 0.02, 0.9, 1e-3, 0.05, -4.0
RULE = {"op_types": ["Linear"]}


def reference(steps):
    """Yield weights, logits and what layers compute with, after each step of plain NumPy."""
    weights = [p.detach().numpy().copy() for p in two_layers().parameters()]
    logits = [START, START]
    speed = [[0.0, 0.0], [0.0, 0.0]]
    for x in batches(steps):
        given = [_shrunk(w, s) for w, s in zip(weights, logits, strict=True)]
        for i, g in enumerate(gradients(given, x.numpy())):
            kept = given[i] != 0
            share = 1 / (1 + np.exp(-logits[i]))
            slope = -(g * np.sign(weights[i]) * kept).sum() * share * (1 - share)
            speed[0][i] = MOMENTUM * speed[0][i] + g * kept + DECAY * weights[i]
            speed[1][i] = MOMENTUM * speed[1][i] + slope + PULL * logits[i]
            weights[i] = weights[i] - LR * speed[0][i]
            logits[i] = logits[i] - LR * speed[1][i]
        yield weights, logits, [_shrunk(w, s) for w, s in zip(weights, logits, strict=True)]


def _shrunk(weight, logit):
    return np.sign(weight) * np.maximum(np.abs(weight) - 1 / (1 + np.exp(-logit)), 0)


def test_each_step_is_that_of_the_paper():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    pruner = STRPruner(model, [RULE], optimizer, decay=PULL, start=START)
    pruner.compress()
    wanted = reference(25)
    for step, x in enumerate(batches(25), 1):
        one_step(model, optimizer, x)
        weights, logits, seen = next(wanted)
        for i, wrapper in enumerate(pruner.get_modules_wrapper()):
            for found, value in (
                (wrapper.weight, weights[i]),
                (wrapper.threshold_logit, logits[i]),
                (wrapper.module.weight, seen[i]),
                (wrapper.weight_mask, seen[i] != 0),
            ):
                np.testing.assert_allclose(
                    found.detach().numpy(), value, atol=1e-8, err_msg=f"step {step}, layer {i}"
                )
    zeros = sum(int((w == 0).sum()) for w in seen)
    assert pruner.sparsity() == pytest.approx(zeros / 900)
    assert 0.1 < pruner.sparsity() < 0.95, "the test needs a mix"


def test_more_decay_prunes_more():
    found = []
    for decay in (0.0, 0.02, 0.1):
        model = two_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        pruner = STRPruner(model, [RULE], optimizer, decay=decay, start=START)
        pruner.compress()
        for x in batches(30):
            one_step(model, optimizer, x)
        found.append(pruner.sparsity())
    assert found[0] < found[1] < found[2], found


def test_a_resumed_training_is_one_that_never_stopped(tmp_path):
    def make():
        model = two_layers()
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        pruner = STRPruner(model, [RULE], optimizer, decay=PULL, start=-3.0)
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


def test_a_start_far_below_zero_is_finite_in_both_directions():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    pruner = STRPruner(model, [RULE], optimizer, decay=PULL, start=-3200.0)  # that of the paper
    pruner.compress()
    one_step(model, optimizer, batches(1)[0])
    logit = pruner.get_modules_wrapper()[0].threshold_logit
    assert float(logit.detach()) == pytest.approx(-3200 * (1 - LR * PULL))
    assert pruner.sparsity() == 0


def test_lbfgs_is_refused_where_thresholds_are_more_precise_than_weights():
    model = nn.Linear(4, 4).bfloat16()
    before = model.weight.detach().clone()
    optimizer = torch.optim.LBFGS(model.parameters())
    pruner = STRPruner(model, [{}], optimizer)
    with pytest.raises(ConfigError, match="LBFGS cannot train parameters of torch.bfloat16 and "):
        pruner.compress()
    assert torch.equal(model.weight, before) and type(model) is nn.Linear
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_arguments_that_make_no_sense_are_refused():
    for options, text in (
        ({"decay": -1.0}, "decay: received -1.0"),
        ({"start": float("nan")}, "start: received nan"),
    ):
        with pytest.raises(ConfigError, match=text):
            STRPruner(nn.Linear(4, 4), [RULE], **options)
    with pytest.raises(ConfigError, match="sparsity"):
        STRPruner(nn.Linear(4, 4), [{**RULE, "sparsity": 0.5}])


def test_digits_at_ninety_percent_are_read_as_well_as_with_gradual_pruning():
    found = {}
    for name in ("agp", "str"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if name == "agp":
            pruner = AGPPruner(model, [{"final_sparsity": 0.9, "end_epoch": 8}], optimizer)
        else:
            pruner = STRPruner(model, [RULE], optimizer, decay=0.06)
        pruner.compress()
        train(model, optimizer, 15, pruner.update_epoch)
        plain = pruner.strip()
        found[name] = sparsity(plain), accuracy(plain)
    assert found["str"][0] >= 0.9, found
    assert found["str"][1] >= found["agp"][1] - 0.02, found


def test_a_refused_optimizer_leaves_the_old_one_at_work():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = STRPruner(model, [{"op_types": ["Linear"]}], optimizer, start=-3.0)
    pruner.compress()
    other = torch.optim.Muon([p for p in model.parameters() if p.dim() == 2])
    with pytest.raises(ConfigError, match="Muon cannot train"):
        pruner.bind_optimizer(other)
    assert pruner.optimizer is optimizer
    assert not other._optimizer_step_pre_hooks and not other._optimizer_step_post_hooks
    wrapper = pruner.get_modules_wrapper()[0]
    before = wrapper.threshold_logit.item()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()
    assert wrapper.threshold_logit.item() != before
    border = torch.sigmoid(wrapper.threshold_logit)
    raw = model.get_parameter("0.weight")
    assert torch.equal((raw.abs() > border).float(), wrapper.weight_mask)


def test_a_refused_compress_leaves_no_hooks():
    model = torch.nn.Linear(6, 8)
    optimizer = torch.optim.Muon([model.weight])
    pruner = STRPruner(model, [{"op_types": ["Linear"]}], optimizer)
    for _ in range(2):
        with pytest.raises(ConfigError, match="Muon cannot train"):
            pruner.compress()
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert type(model) is torch.nn.Linear


def test_a_checkpoint_after_a_failed_step_has_the_groups_of_any_other():
    model = torch.nn.Linear(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    STRPruner(model, [{"op_types": ["Linear"]}], optimizer).compress()

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(fail)
    assert [len(group["params"]) for group in optimizer.state_dict()["param_groups"]] == [3]
