"""Channels that shuffles mix: they shrink together, exactly, however many units there are."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.torch import AGPPruner, L1NormPruner, channel_groups, speedup

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from zoo.registry import randomise
from zoo.shuffled import ShuffleNetV2, shuffle

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

ALL = [{"op_types": ["default"], "sparsity": 0.5}]
X = torch.randn(2, 3, 32, 32, dtype=torch.float64)


def small(units=6):
    torch.manual_seed(0)
    model = ShuffleNetV2((units,), (8, 32, 16), 5)
    randomise(model)
    return model.double().eval()


def check(model, x=X, rules=ALL):
    """Prune and shrink a model; return the result, which is equal to the masked model."""
    before = model(x).detach()
    L1NormPruner(model, rules, example_inputs=x).compress()
    masked = model(x).detach()
    result = speedup(model, x)
    error = (result.model(x) - masked).abs().max() / masked.abs().max()
    assert float(error.detach()) < 1e-12
    assert not torch.allclose(masked, before)
    return result


@pytest.mark.parametrize("units", [4, *(slow(x) for x in (1, 9))])
def test_a_stage_of_shuffled_units_shrinks_to_half(units):
    result = check(small(units))
    assert result.kind == "module"
    assert result.model.units[0].convolve[0].out_channels == 8
    assert result.model.last[0].in_channels == 16
    assert result.macs[1] < 0.45 * result.macs[0]


def test_a_shuffled_group_says_how_many_go_from_layer_to_layer():
    groups = channel_groups(small(4), X)
    (stage,) = groups.analysis.stages
    (group,) = [g for g in groups if g.stage is stage]
    assert stage.size == 16 and group.size == len(stage.roots) == 16 * 5
    counts = np.bincount(stage.rows)
    half = stage.kept(8)
    assert half.sum() == group.size / 2 and (half <= counts).all()
    assert stage.kept(16).tolist() == counts.tolist()


def test_masks_that_fit_no_width_are_cut_to_the_next_larger_one():
    """What is kept too much is zero."""
    model = small(4)
    with torch.no_grad():
        groups = channel_groups(model, X)
        group = next(g for g in groups if g.stage)
        gone = np.random.default_rng(0).permutation(group.size) < 60
        for piece in group.slices:
            tensor = dict(model.named_parameters()).get(piece.tensor)
            dead = torch.from_numpy((piece.units >= 0) & gone[piece.units])
            if tensor is not None:
                tensor.index_fill_(piece.dim, dead.nonzero().ravel(), 0)
    masked = model(X).detach()
    result = speedup(model, X)
    assert torch.allclose(result.model(X), masked, rtol=1e-12)
    assert result.parameters[1] < result.parameters[0]


def test_round_to_holds_for_the_layers_of_a_stage():
    model = ShuffleNetV2((4,), (8, 64, 16), 5).double().eval()
    randomise(model)
    result = check(model, rules=[{"op_types": ["default"], "sparsity": 0.4, "round_to": 8}])
    assert result.model.units[1].convolve[5].out_channels == 24


@pytest.mark.parametrize("target", [slow({"total_sparsity": 0.4}), {"max_macs": 0.5}])
def test_joint_targets_reach_into_stages(target):
    result = check(small(), rules=[{"op_types": ["default"], **target}])
    assert result.model.units[1].convolve[5].out_channels < 16


def test_a_schedule_narrows_a_stage_step_by_step():
    model = small(4)
    rules = [{"op_types": ["default"], "start_epoch": 0, "end_epoch": 3, "frequency": 1}]
    rules[0] |= {"initial_sparsity": 0.0, "final_sparsity": 0.5}
    pruner = AGPPruner(model, rules, example_inputs=X, pruning_algorithm="l1")
    pruner.compress()
    for epoch in range(4):
        pruner.update_epoch(epoch)
    masked = model(X).detach()
    result = speedup(model, X)
    assert torch.allclose(result.model(X), masked, rtol=1e-12)
    assert result.model.units[1].convolve[5].out_channels < 12


class GroupedUnit(nn.Module):
    """ShuffleNet V1: grouped convolutions with a shuffle between them."""

    def __init__(self, width, groups, native=False):
        super().__init__()
        inner = width // 2
        self.groups, self.native = groups, nn.ChannelShuffle(groups) if native else None
        self.first = nn.Sequential(
            nn.Conv2d(width, inner, 1, groups=groups), nn.BatchNorm2d(inner), nn.ReLU()
        )
        self.middle = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)
        self.last = nn.Conv2d(inner, width, 1, groups=groups)

    def forward(self, x):
        h = self.first(x)
        h = shuffle(h, self.groups) if self.native is None else self.native(h)
        return torch.relu(x + self.last(self.middle(h)))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("groups", "width"),
    [(2, 32), *(slow(*x) for x in ((3, 48), (4, 64)))],
)
def test_grouped_convolutions_around_shuffles_shrink(groups, width, native):
    torch.manual_seed(0)
    units = [GroupedUnit(width, groups, native) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, width, 3), *units, nn.Flatten(), nn.Linear(width * 36, 4))
    randomise(model)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    result = check(model.double().eval(), x)
    assert result.kind == "module"
    first = result.model[1].first[0]
    assert first.groups == groups and first.out_channels <= 0.7 * width / 2


class ShuffledByFour(nn.Module):
    """More groups than channels in each, so the number of groups shrinks."""

    def __init__(self, native):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        self.middle = nn.Conv2d(8, 8, 1, groups=4)
        self.mixed = (
            nn.ChannelShuffle(4) if native else lambda x: nn.functional.channel_shuffle(x, 4)
        )

    def forward(self, x):
        return self.last(self.middle(self.mixed(self.first(x))))


@pytest.mark.parametrize(("native", "kind"), [(True, "module"), (False, "graph")])
def test_a_shuffle_of_more_groups_than_channels_in_each_shrinks(native, kind):
    torch.manual_seed(0)
    model = ShuffledByFour(native)
    randomise(model)
    result = check(model.double().eval(), torch.randn(2, 3, 4, 4, dtype=torch.float64))
    assert result.kind == kind
    assert result.model.get_parameter("first.weight").shape[0] == 4


class Fixed(nn.Module):
    """One half of what is shuffled is the input, which stays."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        x = shuffle(torch.cat([x, self.first(x)], 1))
        return self.head(self.last(x).relu())


def test_what_is_shuffled_with_fixed_channels_stays():
    model, x = Fixed().double().eval(), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    groups = channel_groups(model, x)
    assert groups.analysis.stages == () and groups.reason("first.weight")
    assert check(model, x).model.first.out_channels == 4
