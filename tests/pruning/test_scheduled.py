"""Any schedule with any criterion."""

import re

import pytest
import torch

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.lab import sgd, train
from lilliput.pruning.level import LevelMasker
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.testing import TinyCNN
from lilliput.torch import AGPPruner, CompressionState, LinearPruner

RULE = {"final_sparsity": 0.75, "end_epoch": 3}


@pytest.fixture(autouse=True)
def one_thread():
    """The fastest for models this small, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gone(model):
    rows = model.conv1.weight.detach().flatten(1)
    return set((rows == 0).all(1).nonzero().flatten().tolist())


@pytest.mark.parametrize("cls", [AGPPruner, LinearPruner])
@pytest.mark.parametrize(
    ("algorithm", "is_followed"),
    [
        *((name, True) for name in ("l1", "l2", "fpgm", "slim", "taylorfo", "apoz")),
        *((name, False) for name in ("l1", "taylorfo")),
    ],
)
def test_channels_go_step_by_step_and_stay_gone(cls, algorithm, is_followed):
    torch.manual_seed(0)
    model = TinyCNN()
    optimizer = sgd(model)
    names = ["bn1"] if algorithm == "slim" else ["conv1"]
    params = {"training_batches": 2} if algorithm in ("taylorfo", "apoz") else {}
    inputs = {"example_inputs": model.make_input()} if is_followed else {}
    rules = [{**RULE, "op_names": names}]
    pruner = cls(model, rules, optimizer, algorithm, pruning_params=params, **inputs)
    pruner.compress()
    counts, before = [], set()
    for epoch in range(5):
        pruner.update_epoch(epoch)
        train(model, optimizer, 3)
        pruned = (
            gone(model)
            if algorithm != "slim"
            else set((model.bn1.weight == 0).nonzero().flatten().tolist())
        )
        assert before <= pruned
        before = pruned
        counts.append(len(pruned))
        if is_followed:
            assert len(gone(model)) == len(pruned)
            assert set((model.bn1.weight == 0).nonzero().flatten().tolist()) == pruned
    expected = {AGPPruner: [0, 4, 6, 6, 6], LinearPruner: [0, 2, 4, 6, 6]}[cls]
    assert counts == expected
    pruner.strip()


def test_a_schedule_of_channels_resumes_from_its_state(tmp_path):
    def build():
        torch.manual_seed(0)
        model = TinyCNN()
        inputs = model.make_input()
        return model, AGPPruner(model, [RULE], None, "l1", example_inputs=inputs)

    model, pruner = build()
    pruner.compress()
    pruner.update_epoch(1)
    pruner.state().save(tmp_path)
    other, second = build()
    second.compress()
    second.load_state(CompressionState.load(tmp_path))
    assert gone(other) == gone(model)
    for each in (pruner, second):
        each.update_epoch(3)
    assert gone(other) == gone(model)
    assert len(gone(model)) == 6
    for ours, theirs in zip(pruner.companions(), second.companions(), strict=True):
        assert torch.equal(ours.weight_mask, theirs.weight_mask)


def test_limits_hold_on_the_way():
    model = TinyCNN()
    rules = [{**RULE, "op_names": ["conv1"], "round_to": 4, "min_kept": 3}]
    pruner = AGPPruner(model, rules, None, "l1", example_inputs=model.make_input())
    pruner.compress()
    counts = []
    for epoch in range(4):
        pruner.update_epoch(epoch)
        counts.append(len(gone(model)))
    assert counts == [0, 4, 4, 4]


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [("l1", "granularity", "2:4"), ("level", "min_kept", 2), ("level", "round_to", 2)],
)
def test_a_key_that_the_criterion_ignores_is_refused(algorithm, key, value):
    rule = {"final_sparsity": 0.5, key: value}
    with pytest.raises(ConfigError, match=f"rule 0 → {key}: .* does not use this key"):
        AGPPruner(TinyCNN(), [rule], None, algorithm)


class Named(LevelMasker):
    """Declares its argument."""

    def __init__(self, model, pruner, power=1.0):
        super().__init__(model, pruner)
        self.power = power


class Keyword(LevelMasker):
    """Passes the positional arguments on."""

    def __init__(self, *args, power=1.0):
        super().__init__(*args)
        self.power = power


class Anything(LevelMasker):
    """Passes everything on that it does not need itself."""

    def __init__(self, *args, **kwargs):
        self.power = kwargs.pop("power", 1.0)
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("masker", [Named, Keyword, Anything])
def test_arguments_reach_a_criterion_of_your_own(masker):
    mine = type("Mine", (OneShotPruner,), {"masker_type": masker})
    pruner = AGPPruner(TinyCNN(), [RULE], None, mine, pruning_params={"power": 2.0})
    pruner.compress()
    assert pruner.masker.power == 2.0


@pytest.mark.parametrize("masker", [Named, Keyword])
def test_arguments_that_a_criterion_does_not_have_are_refused(masker):
    mine = type("Mine", (OneShotPruner,), {"masker_type": masker})
    text = "has no argument 'powr'; expected some of power. Did you mean 'power'?"
    with pytest.raises(ConfigError, match=re.escape(text)):
        AGPPruner(TinyCNN(), [RULE], None, mine, pruning_params={"powr": 2.0})
    with pytest.raises(ConfigError, match="LevelMasker has no argument 'power'; it has none."):
        AGPPruner(TinyCNN(), [RULE], pruning_params={"power": 2.0})
