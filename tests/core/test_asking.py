"""How a pruner is asked for masks: by a short way, only while it has something to say."""

import inspect

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError
from lilliput.torch import (
    AGPPruner,
    L1NormPruner,
    LevelPruner,
    OneShotPruner,
    Pruner,
    SensitivityPruner,
    TaylorFOWeightPruner,
    WeightMasker,
)

MOST_FRAMES = 6


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()


def recorded(monkeypatch, owner, name):
    """Note each call of a method, as the stack of functions that led to it."""
    stacks, original = [], getattr(owner, name)

    def call(*args, **kwargs):
        stacks.append([frame.function for frame in inspect.stack()])
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return stacks


@pytest.mark.parametrize(
    ("kind", "rule", "options"),
    [
        (LevelPruner, {"sparsity": 0.5}, {}),
        (LevelPruner, {"granularity": "1:2"}, {}),
        (L1NormPruner, {"op_names": ["0"], "sparsity": 0.5}, {}),
        (L1NormPruner, {"sparsity": 0.5}, {"example_inputs": torch.zeros(2, 6)}),
    ],
    ids=["level", "level 1:2", "l1", "l1 with inputs"],
)
def test_few_frames_lie_between_the_update_of_masks_and_the_score(monkeypatch, kind, rule, options):
    stacks = recorded(monkeypatch, kind.masker_type, "score")
    kind(net(), [rule], **options).compress()
    assert stacks
    for stack in stacks:
        # The first is the recorder, which takes the place of score.
        assert len(stack[: stack.index("update_mask") + 1]) <= MOST_FRAMES, stack


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (LevelPruner, {"sparsity": 0.5}),
        (L1NormPruner, {"sparsity": 0.5}),
        (SensitivityPruner, {"quality": 0.5}),
        (AGPPruner, {"final_sparsity": 0.5, "end_epoch": 0}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_pruner_that_is_finished_is_asked_nothing_after_a_step(monkeypatch, kind, rule):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = kind(model, [rule], optimizer)
    asked = [recorded(monkeypatch, kind, name) for name in ("targets", "calc_masks", "update_mask")]
    pruner.compress()
    assert [len(stacks) for stacks in asked] == [1, 1, 1]
    zeros = model[0].weight == 0
    assert zeros.any()
    train(model, optimizer, 5)
    assert [len(stacks) for stacks in asked] == [1, 1, 1]
    assert torch.equal(model[0].weight == 0, zeros)


def test_a_schedule_is_asked_once_in_an_epoch(monkeypatch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = AGPPruner(model, [{"final_sparsity": 0.5, "end_epoch": 2}], optimizer)
    asked = recorded(monkeypatch, AGPPruner, "update_mask")
    pruner.compress()
    counts = []
    for epoch in range(4):
        pruner.update_epoch(epoch)
        train(model, optimizer, 3)
        counts.append((len(asked), int((model[0].weight == 0).sum())))
    assert counts == [(2, 0), (3, 21), (4, 24), (5, 24)]


def test_a_criterion_that_watches_is_asked_when_it_has_seen_enough(monkeypatch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = TaylorFOWeightPruner(
        model, [{"op_names": ["0"], "sparsity": 0.5}], optimizer, training_batches=2
    )
    asked = recorded(monkeypatch, TaylorFOWeightPruner, "update_mask")
    pruner.compress()
    train(model, optimizer)
    assert not asked
    train(model, optimizer, 3)
    assert len(asked) == 1
    assert int((model[0].weight == 0).all(1).sum()) == 4


def test_a_subclass_that_overrides_calc_mask_is_asked_after_every_step():
    class Watched(LevelPruner):
        calls = ()

        def calc_mask(self, wrapper, wrapper_idx=None):
            self.calls = (*self.calls, (wrapper.name, wrapper_idx))
            return super().calc_mask(wrapper, wrapper_idx)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Watched(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    assert pruner.calls == (("0", 0), ("2", 1))
    train(model, optimizer, 2)
    assert pruner.calls == (("0", 0), ("2", 1)) * 3
    assert [int((model[i].weight == 0).sum()) for i in (0, 2)] == [24, 16]


@pytest.mark.parametrize("kind", [LevelPruner, L1NormPruner], ids=["level", "l1"])
def test_a_subclass_that_asks_super_layer_by_layer_gets_the_same_masks(kind):
    class ByLayer(kind):
        def calc_mask(self, wrapper, wrapper_idx=None):
            return super().calc_mask(wrapper, wrapper_idx)

    options = {"example_inputs": torch.zeros(2, 6)} if kind is L1NormPruner else {}
    rules = [{"total_sparsity": 0.5}]
    ours, theirs = net(), net()
    kind(ours, rules, **options).compress()
    pruner = ByLayer(theirs, rules, **options)
    pruner.compress()
    assert all(w.if_calculated for w in pruner.get_modules_wrapper())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one == 0, other == 0)
    assert any((p == 0).any() for p in ours.parameters())


def test_layers_may_take_their_part_of_the_plan_at_different_steps():
    class OneByOne(LevelPruner):
        turn = 0

        def step(self):
            self.turn += 1

        def calc_mask(self, wrapper, wrapper_idx=None):
            return super().calc_mask(wrapper) if wrapper_idx <= self.turn else None

    model = net()
    pruner = OneByOne(model, [{"sparsity": 0.5}])
    pruner.compress()
    assert [int((model[i].weight == 0).sum()) for i in (0, 2)] == [24, 0]
    pruner.step()
    assert [int((model[i].weight == 0).sum()) for i in (0, 2)] == [24, 16]


class SmallestLayers(Pruner):
    """Look at all layers together: the one of smallest norm goes."""

    def calc_masks(self, targets):
        assert [sparsity for _, sparsity in targets] == [0.5] * len(targets)
        smallest = min((wrapper for wrapper, _ in targets), key=lambda w: w.weight.norm().item())
        return [(smallest, torch.zeros_like(smallest.weight))]


def test_a_pruner_may_answer_for_all_layers_at_once():
    model = net()
    norms = [model[0].weight.norm(), model[2].weight.norm()]
    pruner = SmallestLayers(model, [{"sparsity": 0.5}])
    pruner.compress()
    gone = [bool((model[i].weight == 0).all()) for i in (0, 2)]
    assert gone == [bool(norms[0] < norms[1]), bool(norms[1] < norms[0])]
    wrapper = pruner.get_modules_wrapper()[gone.index(True)]
    assert torch.equal(pruner.calc_mask(wrapper), wrapper.weight_mask)


@pytest.mark.parametrize(
    "answer",
    [
        lambda wrapper: None,
        lambda wrapper: {wrapper: wrapper.weight > 0},
        lambda wrapper: [wrapper],
        lambda wrapper: [(wrapper.name, wrapper.weight > 0)],
        lambda wrapper: [(wrapper, wrapper.weight > 0, 1)],
        lambda wrapper: [(net(), wrapper.weight > 0)],
    ],
    ids=["nothing", "dict", "no masks", "by name", "three", "another layer"],
)
def test_an_answer_that_is_not_pairs_of_wrappers_and_masks_is_refused(answer):
    class Wrong(Pruner):
        def calc_masks(self, targets):
            return answer(targets[0][0])

    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(AlgorithmError, match="Wrong.calc_masks returned .*expected"):
        Wrong(model, [{"sparsity": 0.5}]).compress()
    assert type(model[0]) is nn.Linear
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_whichever_of_the_two_methods_is_overridden_last_is_asked():
    class ByLayer(SmallestLayers):
        def calc_mask(self, layer_info, weight):
            return weight > 0

    class Together(ByLayer):
        def calc_masks(self, targets):
            return [(wrapper, wrapper.weight < 0) for wrapper, _ in targets]

    for kind, sign in ((ByLayer, 1), (Together, -1)):
        model = net()
        kept = [model[i].weight.detach().sign() == sign for i in (0, 2)]
        kind(model, [{"sparsity": 0.5}]).compress()
        assert all(torch.equal(model[i].weight != 0, k) for i, k in zip((0, 2), kept, strict=True))


def test_one_buffer_that_a_masker_fills_for_every_layer_gives_each_its_own_mask():
    class Scratch(WeightMasker):
        buffer = torch.zeros(8, 8)

        def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
            return {"weight_mask": self.buffer.fill_(wrapper_idx)}

    class ScratchPruner(OneShotPruner):
        masker_type = Scratch

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    ScratchPruner(model, [{"sparsity": 0.5}]).compress()
    assert [int((layer.weight == 0).sum()) for layer in model] == [64, 0]
