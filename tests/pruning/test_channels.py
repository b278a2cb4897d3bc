"""Channel pruners: which channels go, and that they go from every parameter that has them."""

import copy
import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, UnsupportedModelError
from lilliput.graph.groups import Group, Slice
from lilliput.testing import TinyCNN, TinyLSTM
from lilliput.torch import CompressionState, L1NormPruner, SlimPruner


class Net(nn.Module):
    """conv (8) - norm - scale - grouped conv (6 in 2 groups) - linear on flattened maps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.second = nn.Conv2d(8, 6, 3, padding=1, groups=2)
        self.head = nn.Linear(6 * 4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x))) * self.scale
        return self.head(torch.relu(self.second(x)).flatten(1))


def indices(*values):
    return np.array(values, np.int64)


class Groups:
    """Groups of Net by hand, as an analysis would find them."""

    def __init__(self):
        eight, six = np.arange(8), np.arange(6)
        self.groups = (
            Group(
                "first.weight",
                8,
                (
                    Slice("first.weight", 0, eight, True),
                    Slice("first.bias", 0, eight, True),
                    Slice("norm.weight", 0, eight, False),
                    Slice("norm.bias", 0, eight, False),
                    Slice("norm.running_mean", 0, eight, False),
                    Slice("scale", 0, eight, False),
                    Slice("second.weight", 1, eight.reshape(2, 4), False),
                ),
                rows=eight // 4,
            ),
            Group(
                "second.weight",
                6,
                (
                    Slice("second.weight", 0, six, True),
                    Slice("second.bias", 0, six, True),
                    Slice("head.weight", 1, six.repeat(4), False),
                ),
                rows=six // 3,
            ),
        )

    def reason(self, tensor):
        return "they are the model's output"

    def count_parameters(self, removed):
        gone = [int(removed.get(g.name, np.zeros(g.size)).sum()) for g in self.groups]
        a, b = 8 - gone[0], 6 - gone[1]
        return 28 * a + 3 * a + b * (a // 2 * 9 + 1) + 5 * (4 * b + 1)

    count_macs = count_parameters


def build(rule, model=None, cls=L1NormPruner, optimizer=None, **arguments):
    torch.manual_seed(0)
    model = Net() if model is None else model
    rules = rule if isinstance(rule, list) else [rule]
    return model, cls(model, rules, optimizer, groups=Groups(), **arguments)


def gone(tensor, dim=0):
    flat = tensor.detach().movedim(dim, 0).reshape(tensor.shape[dim], -1)
    return (flat == 0).all(1).nonzero().flatten().tolist()


def test_every_slice_of_a_group_is_masked():
    model, pruner = build({"op_names": ["first"], "sparsity": 0.5})
    nn.init.ones_(model.norm.bias)
    norms = model.first.weight.detach().abs().sum((1, 2, 3))
    expected = sorted(
        i for row in (range(4), range(4, 8)) for i in sorted(row, key=lambda i: norms[i])[:2]
    )
    pruner.compress()
    for tensor in (model.first.weight, model.first.bias, model.norm.weight, model.norm.bias):
        assert gone(tensor) == expected
    assert gone(model.scale) == expected
    weight = model.second.weight.detach()
    assert gone(weight[:3], 1) == [i for i in expected if i < 4]
    assert gone(weight[3:], 1) == [i - 4 for i in expected if i >= 4]
    assert not (model.second.bias == 0).any()
    assert not (model.head.weight == 0).any()


def test_masked_channels_compute_nothing_and_keep_computing_nothing():
    model, pruner = build({"sparsity": 0.5}, optimizer=None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    inputs = torch.randn(4, 3, 2, 2)
    for _ in range(3):
        model(inputs).square().sum().backward()
        optimizer.step()
    pruner.bind_optimizer(optimizer)
    pruner.compress()
    before = {name: p.detach() == 0 for name, p in model.named_parameters()}
    for _ in range(4):
        optimizer.zero_grad()
        (model(inputs) - 1).square().sum().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        raw = parameter.detach()
        assert not raw[before[name]].any(), name
        for wrapper in (*pruner.get_modules_wrapper(), *pruner.companions()):
            if wrapper.name == name:  # momentum of what is pruned is forgotten as well
                buffer = optimizer.state[parameter]["momentum_buffer"]
                assert not buffer[wrapper.weight_mask == 0].any()


def test_companions_are_kept_apart_from_the_selected_layers():
    model, pruner = build({"sparsity": 0.5})
    names = ["norm.weight", "norm.bias", "scale", "head.weight"]
    assert [w.name for w in pruner.get_modules_wrapper()] == ["first", "second"]
    assert [w.name for w in pruner.companions()] == names
    assert "left alone: they are the model's output" in pruner.explain()
    assert not any("lilliput" in key for key in model.state_dict())


def test_layers_that_lose_channels_with_others_are_explained():
    _, pruner = build({"op_names": ["first"], "sparsity": 0.5})
    said = {line.split()[0]: line for line in pruner.explain().splitlines()}
    assert "loses channels with first" in said["norm"]
    assert "no rule matches" in said["head"]


def test_strip_gives_the_plain_model_back():
    model, pruner = build({"sparsity": 0.5})
    plain = Net()
    inputs = torch.randn(4, 3, 2, 2)
    parameters = dict(model.named_parameters())
    pruner.compress()
    model.eval()
    before = model(inputs)
    pruner.strip()
    assert torch.equal(model(inputs), before)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_state_with_companions_continues_where_it_was(tmp_path):
    _model, pruner = build({"sparsity": 0.5})
    pruner.compress()
    pruner.state().save(tmp_path)
    other, second = build({"sparsity": 0.5}, copy.deepcopy(Net()))
    nn.init.normal_(other.first.weight)
    second.compress()
    second.load_state(CompressionState.load(tmp_path))
    pairs = zip(
        (*pruner.get_modules_wrapper(), *pruner.companions()),
        (*second.get_modules_wrapper(), *second.companions()),
        strict=True,
    )
    for ours, theirs in pairs:
        assert torch.equal(ours.weight_mask, theirs.weight_mask)
        assert not (theirs.weight[ours.weight_mask == 0]).any()


def test_a_copy_of_the_model_has_its_own_masks():
    model, pruner = build({"sparsity": 0.5})
    pruner.compress()
    model.eval()
    twin, inputs = copy.deepcopy(model), torch.randn(2, 3, 2, 2)
    expected = model(inputs)
    pruner.strip()
    assert torch.equal(twin(inputs), expected)


def test_exported_masks_name_companions_after_their_parameters(tmp_path):
    _model, pruner = build({"op_names": ["first"], "sparsity": 0.5})
    pruner.compress()
    pruner.export_model(str(tmp_path / "model.pt"), str(tmp_path / "masks.pt"))
    masks = torch.load(tmp_path / "masks.pt", weights_only=True)
    expected = {"first.weight_mask", "first.bias_mask", "norm.weight_mask", "norm.bias_mask"}
    assert set(masks) == expected | {"scale_mask", "second.weight_mask"}
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert gone(state["norm.bias"] + (masks["norm.bias_mask"] != 0)) == gone(state["first.weight"])


def test_scores_of_layers_that_share_channels_are_averaged_and_the_smallest_sparsity_holds(caplog):
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None].expand(4, 3))
        model[1].weight.copy_(torch.tensor([9.0, 1.0, 1.0, 1.0])[:, None].expand(4, 3))
    units = np.arange(4)
    slices = (Slice("0.weight", 0, units, True), Slice("1.weight", 0, units, True))
    groups = SimpleNamespace(groups=(Group("0.weight", 4, slices),))
    rules = [{"sparsity": 0.75}, {"op_names": ["1"], "sparsity": 0.5}]
    with caplog.at_level(logging.INFO, "lilliput"):
        pruner = L1NormPruner(model, rules, groups=groups)
    assert "the smallest sparsity applies to all of them" in caplog.text
    pruner.compress()
    assert gone(model[0].weight) == gone(model[1].weight) == [1, 2]


def test_units_of_several_channels_add_their_scores_up():
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [5.0], [9.0], [1.0]]))
    group = Group("0.weight", 2, (Slice("0.weight", 0, indices(0, 1, 0, 1), True),))
    L1NormPruner(model, [{"sparsity": 0.5}], groups=SimpleNamespace(groups=(group,))).compress()
    assert gone(model[0].weight) == [1, 3]


def test_indices_outside_the_group_are_left_alone():
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    group = Group("0.weight", 2, (Slice("0.weight", 0, indices(-1, 0, 1, -1), True),))
    L1NormPruner(model, [{"sparsity": 0.5}], groups=SimpleNamespace(groups=(group,))).compress()
    assert len(gone(model[0].weight)) == 1
    assert gone(model[0].weight)[0] in (1, 2)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"sparsity": 0.99}, 2),  # one in each row
        ({"sparsity": 0.3}, 6),
        ({"sparsity": 0.3, "round_to": 4}, 8),
        ({"sparsity": 0.5, "round_to": 4}, 4),
        ({"sparsity": 0.9, "min_kept": 5}, 6),
        ({"sparsity": 0.9, "round_to": 16}, 8),
    ],
)
def test_limits_of_a_rule(settings, kept):
    model, pruner = build({"op_names": ["first"], **settings})
    pruner.compress()
    assert 8 - len(gone(model.first.weight)) == kept


def test_a_total_sparsity_ranks_groups_together():
    model, pruner = build({"total_sparsity": 0.5, "max_sparsity_per_layer": 0.67})
    pruner.compress()
    assert len(gone(model.first.weight)) + len(gone(model.second.weight)) <= 7


@pytest.mark.parametrize("key", ["max_params", "max_macs"])
@pytest.mark.parametrize("budget", [0.6, 300])
def test_a_budget_is_met(key, budget):
    model, pruner = build({key: budget})
    pruner.compress()
    removed = {
        name: np.isin(np.arange(len(weight)), gone(weight))
        for name, weight in (
            ("first.weight", model.first.weight),
            ("second.weight", model.second.weight),
        )
    }
    count = Groups().count_parameters
    allowed = budget if budget > 1 else int(count({}) * budget)
    assert count(removed) <= allowed
    assert any(flags.any() for flags in removed.values())


def test_a_budget_out_of_reach_is_refused_and_nothing_changes():
    model, pruner = build({"max_params": 50})
    with pytest.raises(AlgorithmError, match="the selected layers"):
        pruner.compress()
    assert type(model.first) is nn.Conv2d


def test_budgets_need_example_inputs():
    with pytest.raises(ConfigError, match=r"rule 0 → max_macs: .* pass example_inputs"):
        L1NormPruner(Net(), [{"max_macs": 0.5}])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"op_names": ["head"], "sparsity": 0.5}, "cannot be removed: they are the model's output"),
        ({"op_types": ["Linear"], "sparsity": 0.5}, "no selected layer has channels that can"),
        (
            {"sparsity": 0.5, "max_macs": 0.5},
            "exactly one of .* received 'sparsity' and 'max_macs'",
        ),
        ({}, "exactly one of .* received none"),
        ({"max_macs": 1}, r"expected a fraction in \(0, 1\), or an integer from 2 to"),
        ({"max_macs": 2.5}, "an integer from 2 to"),
        ({"sparsity": 0.5, "round_to": 0}, "round_to"),
        ({"sparsity": 0.5, "max_sparsity_per_layer": 0.6}, "limits only targets that span layers"),
        ({"total_sparsity": 0.5, "max_sparsity_per_layer": 0.4}, "cannot be reached"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(rule, message):
    with pytest.raises(ConfigError, match=message):
        build(rule)


def test_a_layer_that_a_type_selects_is_left_alone_with_a_note(caplog):
    with caplog.at_level(logging.INFO, "lilliput"):
        _, pruner = build({"op_types": ["Conv2d", "Linear"], "sparsity": 0.5})
    assert "the channels of 'head' cannot be removed" in caplog.text
    assert "head" not in [w.name for w in pruner.get_modules_wrapper()]


def test_an_excluded_layer_protects_what_shares_its_channels():
    rules = [{"sparsity": 0.5}, {"op_names": ["first"], "exclude": True}]
    model, pruner = build(rules)
    pruner.compress()
    assert gone(model.first.weight) == []
    assert len(gone(model.second.weight)) == 2
    with pytest.raises(ConfigError, match="excluded by rule 1"):
        build(
            [
                {"op_names": ["norm"], "sparsity": 0.5},
                {"op_names": ["first"], "exclude": True},
            ],
            cls=SlimPruner,
        )


def test_a_bare_parameter_of_a_sequential_is_refused_in_clear_words():
    class Scaled(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(3, 4), nn.Linear(4, 2))
            self.scale = nn.Parameter(torch.ones(4))

    units = np.arange(4)
    slices = (Slice("0.weight", 0, units, True), Slice("scale", 0, units, False))
    groups = SimpleNamespace(groups=(Group("0.weight", 4, slices),))
    model = Scaled()
    rules = [{"op_names": ["0"], "sparsity": 0.5}]
    with pytest.raises(UnsupportedModelError, match="'scale' is a Scaled with its own weights"):
        L1NormPruner(model, rules, groups=groups).compress()
    assert type(model[0]) is nn.Linear


def test_a_shared_parameter_is_masked_once_for_all_its_owners():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Linear(3, 4)
            self.one, self.two = nn.LayerNorm(4), nn.LayerNorm(4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.one(self.make(x)) + self.two(self.make(x))

    units = np.arange(4)
    tensors = ("one.weight", "one.bias", "two.bias")
    slices = [Slice("make.weight", 0, units, True), Slice("make.bias", 0, units, True)]
    slices += [Slice(tensor, 0, units, False) for tensor in tensors]
    model = Shared()
    groups = SimpleNamespace(groups=(Group("make.weight", 4, tuple(slices)),))
    pruner = L1NormPruner(model, [{"sparsity": 0.5}], groups=groups)
    assert [w.name for w in pruner.companions()] == list(tensors)
    pruner.compress()
    assert gone(model.one.weight) == gone(model.two.weight) == gone(model.make.weight)
    pruner.strip()
    assert model.one.weight is model.two.weight


def test_without_example_inputs_only_filters_go_and_a_warning_says_so(caplog):
    model = TinyCNN()
    pruner = L1NormPruner(model, [{"op_types": ["Conv2d"], "sparsity": 0.5}])
    assert pruner.companions() == []
    with caplog.at_level(logging.WARNING, "lilliput"):
        pruner.compress()
    assert len(caplog.records) == 1
    assert "pass example_inputs" in caplog.text
    assert len(gone(model.conv2.weight)) == 5
    assert gone(model.conv2.bias) == gone(model.conv2.weight)
    assert not (model.bn1.weight == 0).any()


def test_recurrent_layers_need_example_inputs():
    model = TinyLSTM()
    with pytest.raises(ConfigError, match="requires example_inputs"):
        L1NormPruner(model, [{"op_types": ["LSTM"], "sparsity": 0.5}])
    L1NormPruner(
        model, [{"op_types": ["LSTM"], "sparsity": 0.5}], example_inputs=model.make_input()
    )


def test_example_inputs_are_followed_through_the_model():
    model = TinyCNN()
    pruner = L1NormPruner(model, [{"sparsity": 0.5}], example_inputs=model.make_input())
    pruner.compress()
    assert gone(model.bn2.weight) == gone(model.conv2.weight)
    assert gone(model.fc.weight, 1) == [
        16 * i + j for i in gone(model.conv2.weight) for j in range(16)
    ]


@pytest.mark.parametrize(
    ("key", "count"), [("max_macs", "count_macs"), ("max_params", "count_parameters")]
)
def test_a_budget_is_met_on_a_followed_model(key, count):
    model = TinyCNN()
    rules = [{key: 0.5, "round_to": 2, "max_sparsity_per_layer": 0.75}]
    pruner = L1NormPruner(model, rules, example_inputs=model.make_input())
    pruner.compress()
    layers = {"conv1.weight": model.conv1, "conv2.weight": model.conv2}
    removed = {
        name: np.isin(np.arange(len(layer.weight)), gone(layer.weight))
        for name, layer in layers.items()
    }
    measure = getattr(pruner.layout.groups, count)
    assert measure(removed) <= measure({}) / 2
    assert all(flags.sum() % 2 == 0 and flags.mean() <= 0.75 for flags in removed.values())


def test_positions_in_a_grouped_transposed_convolution_add_the_scores_of_all_groups_up():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 8, 2, groups=2), nn.Conv2d(8, 2, 1)).eval()
    x, weight = torch.randn(2, 4, 3, 3), model[0].weight.detach().clone()
    rules = [{"op_names": ["0"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    gone = weight.abs().sum((0, 2, 3)).argsort()[:2]
    assert not model[0].weight[:, gone].any()
    assert int((model[0].weight == 0).sum()) == weight[:, gone].numel()
    assert torch.equal((model[0].bias == 0).nonzero().flatten() % 4, gone.sort().values.repeat(2))


def test_importing_lilliput_loads_nothing_of_the_analysis():
    code = (
        "import sys, lilliput.torch; heavy = ('lilliput.speedup', 'lilliput.pruning.layout'); "
        "print([m for m in sys.modules if m.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
