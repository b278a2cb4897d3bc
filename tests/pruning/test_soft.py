"""ST-3: soft thresholds on AGP's schedule, against a loop that is written out here."""

import copy

import numpy as np
import pytest
import torch
from digits_training import accuracy, network, sparsity, train
from torch import nn

from lilliput.errors import ConfigError, UnsupportedModelError
from lilliput.ops.schedule import cubic_sparsity
from lilliput.testing import Subject, pruner_checks
from lilliput.torch import AGPPruner, strip

RULE = {"final_sparsity": 0.9, "start_epoch": 1, "end_epoch": 5}
LR, MOMENTUM, DECAY = 0.005, 0.9, 1e-3


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30, bias=False), nn.Tanh(), nn.Linear(30, 10, bias=False))


def batches(count):
    made = torch.Generator().manual_seed(1)
    return [torch.randn(8, 20, generator=made) for _ in range(count)]


def loss_of(model, x):
    return (model(x) - x[:, :10].sin()).square().sum()


def reference(epochs, steps, hard_epoch, is_total):
    """Yield, after each step, the weights that a plain NumPy loop trains and computes with."""
    shrink = _shrunk_together if is_total else _shrunk_alone
    raw = [p.detach().double().numpy().copy() for p in two_layers().parameters()]
    speed = [np.zeros_like(w) for w in raw]
    given = iter(batches(epochs * steps))
    masks = None
    for epoch in range(epochs):
        target = cubic_sparsity(epoch, 0.0, 0.9, 1, 5, 1)
        for step in range(steps):
            if epoch == hard_epoch and step == 0:
                seen = shrink(raw, target)
                raw, masks = seen, [w != 0 for w in seen]
                speed = [v * m for v, m in zip(speed, masks, strict=True)]
            is_soft = masks is None
            seen = shrink(raw, target) if is_soft else raw
            for i, g in enumerate(_gradients(seen, next(given).double().numpy())):
                g = g if is_soft else g * masks[i]
                speed[i] = MOMENTUM * speed[i] + g + DECAY * raw[i]
                raw[i] = raw[i] - LR * speed[i]
            yield raw, shrink(raw, target) if is_soft else raw


def _shrunk_alone(weights, sparsity):
    return [_shrunk(w, _border([w], sparsity)) for w in weights]


def _shrunk_together(weights, sparsity):
    return [_shrunk(w, _border(weights, sparsity)) for w in weights]


def _border(weights, sparsity):
    sizes = np.sort(np.concatenate([np.abs(w).ravel() for w in weights]))
    count = round(sizes.size * sparsity)
    return sizes[count - 1] if count else 0.0


def _shrunk(weight, border):
    size = np.abs(weight)
    kept = np.where(size > border, size, 0).sum(1) / size.sum(1)
    return np.sign(weight) * np.maximum(size - border, 0) * 1.01 / (kept[:, None] + 0.01)


def _gradients(weights, x):
    first, second = weights
    hidden = np.tanh(x @ first.T)
    error = 2 * (hidden @ second.T - np.sin(x[:, :10]))
    back = (error @ second) * (1 - hidden**2)
    return back.T @ x, error.T @ hidden


@pytest.mark.parametrize("key", ["final_sparsity", "total_sparsity"])
@pytest.mark.parametrize(("hard_epoch", "hardens"), [(None, 7), (6, 6)])
def test_each_step_is_that_of_the_formula(hard_epoch, hardens, key):
    model = two_layers().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    rule = {key: 0.9, "start_epoch": 1, "end_epoch": 5}
    pruner = AGPPruner(model, [rule], optimizer, soft=True, hard_epoch=hard_epoch)
    pruner.compress()
    wanted = reference(9, 3, hardens, key == "total_sparsity")
    given = iter(batches(27))
    for epoch in range(9):
        pruner.update_epoch(epoch)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, next(given).double()).backward()
            optimizer.step()
            raw, seen = next(wanted)
            for i, wrapper in enumerate(pruner.get_modules_wrapper()):
                assert wrapper.keeps_raw() == (epoch < hardens)
                shown = wrapper.module.weight.detach().numpy()
                np.testing.assert_allclose(wrapper.weight.detach().numpy(), raw[i], atol=1e-10)
                np.testing.assert_allclose(shown, seen[i], atol=1e-10)
                assert np.array_equal(shown != 0, wrapper.weight_mask.numpy() != 0)
            target = cubic_sparsity(epoch, 0.0, 0.9, 1, 5, 1)
            asked = [900 * target] if key == "total_sparsity" else [600 * target, 300 * target]
            zeros = [int((w.module.weight == 0).sum()) for w in pruner.get_modules_wrapper()]
            assert sum(zeros) == sum(map(round, asked))


def unequal_layers():
    """Return layers of which the first loses weights long before the second."""
    model = two_layers()
    with torch.no_grad():
        model[2].weight.copy_(model[2].weight.sign() * (5 + model[2].weight.abs()))
    return model


def test_a_total_has_one_threshold_and_stays_when_masks_become_hard():
    model = unequal_layers()
    sizes = np.abs(model[0].weight.detach().numpy())
    pruner = AGPPruner(model, [{"total_sparsity": 0.4, "end_epoch": 4}], soft=True)
    pruner.compress()
    for epoch in range(8):
        pruner.update_epoch(epoch)
        count = round(900 * cubic_sparsity(epoch, 0.0, 0.4, 0, 4))
        assert [int((model[i].weight == 0).sum()) for i in (0, 2)] == [count, 0]
        if 0 < epoch < 6:
            border = np.sort(sizes, axis=None)[count - 1]
            for wrapper in pruner.get_modules_wrapper():
                assert float(wrapper.threshold) == border
    assert not any(wrapper.keeps_raw() for wrapper in pruner.get_modules_wrapper())


def test_a_total_is_that_of_all_layers_if_some_are_hard_already():
    model = two_layers()
    pruner = AGPPruner(model, [{"total_sparsity": 0.5, "end_epoch": 2}], soft=True)
    pruner.compress()
    pruner.update_epoch(2)
    pruner.harden(pruner.get_modules_wrapper()[:1])
    for epoch in (3, 4):
        pruner.update_epoch(epoch)
        assert sum(int((model[i].weight == 0).sum()) for i in (0, 2)) == 450


def test_pruned_weights_come_back_until_the_masks_are_hard():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pruner = AGPPruner(
        model, [{"initial_sparsity": 0.5, "final_sparsity": 0.5}], optimizer, soft=True
    )
    pruner.compress()
    before = pruner.get_modules_wrapper()[0].weight_mask.clone()
    for x in batches(5):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        assert bool((model[0].get_parameter("weight").grad[before == 0] != 0).any())
        optimizer.step()
    soft = pruner.get_modules_wrapper()[0].weight_mask.clone()
    assert bool(((before == 0) & (soft == 1)).any())
    pruner.update_epoch(2)
    for x in batches(5):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    assert bool((model[0].weight[soft == 0] == 0).all())


def test_blocks_are_shrunk_as_a_whole():
    model = nn.Linear(8, 6, bias=False)
    torch.manual_seed(3)
    nn.init.normal_(model.weight)
    rule = {"initial_sparsity": 0.5, "final_sparsity": 0.5, "granularity": [2, 4]}
    raw = model.weight.detach().numpy().copy()
    AGPPruner(model, [rule], soft=True).compress()
    size = np.abs(raw).reshape(3, 2, 2, 4).sum((1, 3))
    border = np.sort(size, axis=None)[2]
    factor = np.maximum(1 - border / size, 0).repeat(2, 0).repeat(4, 1)
    kept = (np.abs(raw) * (factor > 0)).sum(1) / np.abs(raw).sum(1)
    factor *= 1.01 / (kept[:, None] + 0.01)
    np.testing.assert_allclose(model.weight.detach().numpy(), raw * factor, atol=1e-6)
    assert int((factor == 0).sum()) == 24


def test_strip_leaves_what_was_computed_and_copies_do_too():
    model = two_layers()
    pruner = AGPPruner(model, [RULE], soft=True)
    pruner.compress()
    pruner.update_epoch(3)
    x = batches(1)[0]
    with torch.no_grad():
        wanted = model(x)
        twin = strip(copy.deepcopy(model))
        torch.testing.assert_close(twin(x), wanted, rtol=0, atol=0)
        assert pruner.get_modules_wrapper()[0].keeps_raw()
        torch.testing.assert_close(pruner.strip()(x), wanted, rtol=0, atol=0)
    assert int((model[0].weight == 0).sum()) == round(600 * cubic_sparsity(3, 0.0, 0.9, 1, 5))


def test_a_compiled_model_follows_when_the_masks_become_hard():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rule = {"initial_sparsity": 0.5, "final_sparsity": 0.5, "end_epoch": 2}
    pruner = AGPPruner(model, [rule], optimizer, soft=True)
    pruner.compress()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for epoch in (0, 3):
        pruner.update_epoch(epoch)
        for x in batches(2):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            wanted = model[0].get_parameter("weight").grad.clone()
            optimizer.zero_grad()
            loss_of(compiled, x).backward()
            found = model[0].get_parameter("weight").grad
            torch.testing.assert_close(found, wanted, msg=f"epoch {epoch}")
            assert bool((found[model[0].weight == 0] != 0).any()) == (epoch == 0)
            optimizer.step()
    torch._dynamo.reset()


class Same(nn.Module):
    """A parametrization that could hold a masked weight."""

    def forward(self, x):
        return x

    def right_inverse(self, x):
        return x


def test_what_cannot_be_shrunk_is_refused():
    with pytest.raises(ConfigError, match="without soft=True"):
        AGPPruner(nn.Linear(8, 8), [RULE], hard_epoch=3)
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Same())
    with pytest.raises(UnsupportedModelError, match="has a parametrized 'weight'"):
        AGPPruner(nn.Sequential(layer), [RULE], soft=True)


class SoftPhase(AGPPruner):
    """AGP with soft thresholds, for checks that end before the masks are hard."""

    regrows = True
    computes_weights = True


def soft_phase(model, rules, optimizer):
    return SoftPhase(model, rules, optimizer, soft=True, hard_epoch=5)


def hard_phase(model, rules, optimizer):
    return AGPPruner(model, rules, optimizer, soft=True)


@pytest.mark.parametrize("check", pruner_checks(), ids=lambda check: check.__name__)
def test_the_soft_phase_conforms(check):
    check(Subject(SoftPhase, make=soft_phase))


@pytest.mark.parametrize(
    "check",
    [x for x in pruner_checks() if "exact" in x.__name__ or "stay_zero" in x.__name__],
    ids=lambda check: check.__name__,
)
def test_the_hard_phase_conforms(check):
    check(Subject(AGPPruner, make=hard_phase))


def test_digits_at_ninety_percent_are_read_as_well_as_with_hard_masks():
    found = {}
    for soft in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        pruner = AGPPruner(model, [{"final_sparsity": 0.9, "end_epoch": 8}], optimizer, soft=soft)
        pruner.compress()
        train(model, optimizer, 15, pruner.update_epoch)
        plain = pruner.strip()
        assert sparsity(plain) == pytest.approx(0.9, abs=1e-3)
        found[soft] = accuracy(plain)
    assert found[False] > 0.9  # a bar that is worth comparing with
    assert found[True] >= found[False] - 0.01, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_weights_as_many_are_computed_as_zero_as_the_mask_prunes(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to(dtype)
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    rule = {"initial_sparsity": 0.5, "final_sparsity": 0.5, "end_epoch": 2}
    pruner = AGPPruner(model, [{"op_types": ["Linear"], **rule}], soft=True)
    pruner.compress()
    for layer, wrapper in zip(model, pruner.get_modules_wrapper(), strict=True):
        assert int((layer.weight == 0).sum()) == int((wrapper.weight_mask == 0).sum()) == 2048
    pruner.strip()
    assert [int((layer.weight == 0).sum()) for layer in model] == [2048, 2048]


def test_whole_filters_are_blocks_of_one_output():
    """They are shrunk by the sum of their magnitudes, and one that was pruned may come back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 2), nn.Conv2d(6, 2, 1))
    rule = {"op_names": ["0"], "granularity": [1, 3], "final_sparsity": 0.5, "end_epoch": 0}
    pruner = AGPPruner(model, [rule], soft=True, hard_epoch=9)
    pruner.compress()
    raw = pruner.get_modules_wrapper()[0].weight.detach()
    size = raw.abs().sum((1, 2, 3))
    order = size.argsort()
    wanted = raw * (1 - size[order[2]] / size).clamp(min=0)[:, None, None, None]
    torch.testing.assert_close(model[0].weight.detach(), wanted)
    assert bool((model[0].weight[order[:3]] == 0).all())
    with torch.no_grad():
        pruner.get_modules_wrapper()[0].weight[order[0]] *= 100
    pruner.step()
    assert bool((model[0].weight[order[0]] != 0).all())
    assert bool((model[0].weight[order[1:4]] == 0).all())
