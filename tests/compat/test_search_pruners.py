"""NNI's pruners that search: what is asked of their arguments, and that a failure changes nothing."""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import AlgorithmError, ConfigError, StageError

pytest.importorskip("scipy")
RULES = [{"sparsity": 0.5, "op_types": ["Linear"]}]
TOTAL = [{"total_sparsity": 0.5, "op_types": ["Linear"]}]


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


def first(name):
    from nni.algorithms.compression.pytorch import pruning

    return getattr(pruning, name)


def second(name):
    from nni.compression.pytorch import pruning

    return getattr(pruning, name)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def same(model, before):
    state = model.state_dict()
    return state.keys() == before.keys() and all(torch.equal(before[k], state[k]) for k in before)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
@pytest.mark.parametrize("value", [math.nan, RuntimeError("no data")])
def test_an_evaluator_that_fails_leaves_the_model_as_it_was(fails_at, value):
    model, calls = net(), []
    before = copy.deepcopy(model.state_dict())

    def evaluator(model):
        calls.append(1)
        if len(calls) < fails_at:
            return 0.5
        if isinstance(value, float):
            return value
        raise value

    def tune(model):
        nn.init.zeros_(model[0].bias)

    made = [
        first("NetAdaptPruner")(model, RULES, tune, evaluator, sparsity_per_iteration=0.1),
        first("SimulatedAnnealingPruner")(model, RULES, evaluator),
        second("SimulatedAnnealingPruner")(model, TOTAL, evaluator, finetuner=tune),
    ]
    for pruner in made:
        calls.clear()
        with pytest.raises(AlgorithmError, match="evaluate (returned nan|raised RuntimeError)"):
            pruner.compress()
        assert same(model, before) and not model.training


def test_a_metric_that_is_to_be_small_is_minimized():
    model = net()
    seen = []

    def error(model):
        seen.append(float((model[0].weight == 0).float().mean()))
        return seen[-1]  # the fewer zeros in the first layer, the better

    pruner = first("SimulatedAnnealingPruner")(
        model, RULES, error, optimize_mode="minimize", base_algo="level", cool_down_rate=0.8
    )
    pruned = pruner.compress()
    tried = [x for x in seen if x > 0]  # without the model as it was
    assert float((pruned[0].weight == 0).float().mean()) == min(tried) < 0.5
    zeros = sum(int((layer.weight == 0).sum()) for layer in (pruned[0], pruned[3]))
    assert zeros >= 0.5 * (128 + 64)


def test_the_best_weights_are_those_that_were_fine_tuned():
    model, tuned = net(), []

    def tune(model):
        with torch.no_grad():
            model[3].bias += 1
        tuned.append(1)

    def evaluator(model):
        return float(model[3].bias.detach()[0]) + float((model[0].weight != 0).sum())

    start = float(model[3].bias.detach()[0])
    pruner = first("NetAdaptPruner")(
        model, RULES, tune, evaluator, base_algo="level", sparsity_per_iteration=0.25
    )
    rounds = float(pruner.compress()[3].bias.detach()[0]) - start
    # One more in each round, and not for each proposal: a round goes on from the best of the last.
    assert 1 <= rounds < len(tuned)


def test_weights_of_few_trials_are_held_at_a_time():
    """However many proposals there are: those that a round began with, its best, and the one at work."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    pruner = first("NetAdaptPruner")(
        model, RULES, lambda model: None, lambda model: 0.5, base_algo="level"
    )
    held = []
    keep = pruner._keep

    def note(*args):
        keep(*args)
        held.append(len(pruner._kept))

    pruner._keep = note
    pruner.compress()
    assert len(held) > 20 and max(held) <= 2


def test_a_rule_of_its_own_sparsity_is_not_distributed_in_the_second_stack():
    rules = [{"sparsity": 0.25, "op_names": ["0"]}, {"total_sparsity": 0.5, "op_names": ["3"]}]
    pruner = second("SimulatedAnnealingPruner")(net(), rules, lambda model: 0.5)
    _, masks = pruner.compress()
    assert {name: float(mask["weight"].mean()) for name, mask in masks.items()} == {
        "0": 0.75,
        "3": 0.5,
    }


def test_the_trials_are_as_many_as_the_temperatures_say():
    calls = []

    def evaluator(model):
        calls.append(1)
        return 0.5

    pruner = first("SimulatedAnnealingPruner")(
        net(), RULES, evaluator, start_temperature=100, stop_temperature=20, cool_down_rate=0.5
    )
    rules = pruner.compress(return_config_list=True)
    assert (
        len(calls) <= 1 + 2 + 3
    )  # the model, all alike and the best by its weights, 50 and 25 degrees
    assert not pruner.is_wrapped and all(rule["sparsity"] > 0 for rule in rules)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: first("NetAdaptPruner")(net(), RULES, evaluator=None), "evaluator is missing"),
        (
            lambda: first("SimulatedAnnealingPruner")(net(), RULES, len, base_algo="taylor"),
            "received 'taylor' .*expected one that uses only weights: level",
        ),
        (
            lambda: first("SimulatedAnnealingPruner")(net(), RULES, len, optimize_mode="max"),
            "optimize_mode: received 'max', expected maximize or minimize",
        ),
        (
            lambda: first("SimulatedAnnealingPruner")(net(), RULES, len, cool_down_rate=1.5),
            "cool_down_rate: received 1.5, expected a number above 0 and below 1",
        ),
        (
            lambda: first("SimulatedAnnealingPruner")(net(), RULES, len, temperature=3),
            "received .*temperature=….*expected .*start_temperature",
        ),
        (
            lambda: first("NetAdaptPruner")(net(), RULES, len, len, sparsity_per_iteration=0),
            "sparsity_per_iteration: received 0",
        ),
        (
            lambda: second("SimulatedAnnealingPruner")(net(), TOTAL, len, speedup=True),
            "speedup needs dummy_input",
        ),
        (
            lambda: second("SimulatedAnnealingPruner")(net(), TOTAL, len, pruning_params={"a": 1}),
            "pruning_params is not available",
        ),
        (
            lambda: first("AutoCompressPruner")(net(), RULES, len, len, None),
            "dummy_input is missing",
        ),
        (
            lambda: second("AutoCompressPruner")(net(), TOTAL, 2, None, {}),
            "admm_params: received None",
        ),
        (
            lambda: second("AMCPruner")(1, net(), TOTAL, None, len),
            "dummy_input and evaluator are required",
        ),
        (
            lambda: second("AMCPruner")(1, net(), TOTAL, torch.zeros(2, 8), len, target="latency"),
            "target: received 'latency', expected 'flops' or 'params'",
        ),
        (
            lambda: first("AMCPruner")(net(), RULES, len, [1], reward="acc_flops_reward"),
            "reward: the budget is kept exactly",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("target", ["flops", "params"])
def test_amc_is_never_worse_than_one_sparsity_for_all_layers(target):
    """Sensitivities want one layer whole, the evaluator wants both alike."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    with torch.no_grad():
        model[2].weight[:8] *= 0.01  # half of these channels hardly matter
        model[2].bias[:8] = 0

    def likeness(model):
        return -abs(model[0].out_features - model[2].out_features)

    rules = [{"total_sparsity": 0.4, "op_types": ["Linear"]}]
    pruner = second("AMCPruner")(1, model, rules, torch.randn(4, 8), likeness, target=target)
    small, _ = pruner.compress()
    assert small[0].out_features == small[2].out_features < 16
    assert pruner.get_best_result()[3] == 0


def test_a_target_that_amc_cannot_reach_says_what_can_be_had():
    loader = [(torch.randn(8, 8), torch.zeros(8))]
    pruner = first("AMCPruner")(
        net(), [{"op_types": ["Linear"]}], lambda loader, model: 0.5, loader, flops_ratio=0.01
    )
    with pytest.raises(AlgorithmError, match=r"cannot be met .*The closest: .*macs"):
        pruner.compress()


def test_amc_counts_parameters_as_well():
    model = net()
    pruner = second("AMCPruner")(
        2,
        model,
        TOTAL,
        torch.randn(4, 8),
        lambda m: float(m(torch.ones(2, 8)).detach().sum()),
        target="params",
    )
    small, _ = pruner.compress()
    whole, own = sum(p.numel() for p in net().parameters()), 128 + 64
    assert sum(p.numel() for p in small.parameters()) <= whole - 0.5 * own
    assert small[0].out_features < 16 and model[0].out_features == 16


def test_an_optimizer_that_cannot_be_made_anew_is_refused_before_anything_is_cut():
    from nni.compression.pytorch import TorchEvaluator

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluator = TorchEvaluator(
        lambda *args: None,
        optimizer,
        nn.CrossEntropyLoss(),
        dummy_input=torch.zeros(2, 8),
        evaluating_func=lambda model: 0.5,
    )
    rules = [{"total_sparsity": 0.5, "op_names": ["0"]}]
    pruner = second("SimulatedAnnealingPruner")(
        model, rules, evaluator, cool_down_rate=0.1, pruning_algorithm="l1", speedup=True
    )
    with pytest.raises(StageError, match=r"nni\.trace"):
        pruner.compress()
    assert model[0].out_features == 16


def test_iterative_pruners_take_a_function_that_scores_as_before_29():
    pruner = second("AGPPruner")(net(), RULES, "level", 2, evaluator=lambda model: 0.5)
    _, masks = pruner.compress()
    assert float(masks["0"]["weight"].mean()) == 0.5


def test_the_solver_that_is_missing_is_named_before_anything_is_evaluated(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    pruner = first("SimulatedAnnealingPruner")(net(), RULES, Path)  # which is no evaluator
    with pytest.raises(ImportError, match=r"SimulatedAnnealingPruner needs .*lilliput\[search\]"):
        pruner.compress()
