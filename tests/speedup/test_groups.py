"""Groups as a user sees them: the listing, the reasons, and the costs against counting for real."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from random_nets import build, randomize, specs
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lilliput.errors import ConfigError
from lilliput.graph.groups import unit_of
from lilliput.pruning.l1 import L1NormPruner
from lilliput.speedup.channels import channel_groups
from lilliput.speedup.preflight import preflight
from lilliput.speedup.shrink import speedup


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.g = nn.Conv2d(8, 4, 1, groups=2)
        self.head = nn.Linear(4, 5)
        self.spare = nn.Linear(7, 7)  # never called

    def forward(self, x):
        return self.head(torch.relu(self.g(torch.relu(self.norm(self.a(x))))).mean((2, 3)))


LISTING = """\
2 channel groups, 12 units can be removed
a.weight: 8 units in 2 rows
  produced by a.weight
  also in a.bias, norm.weight, norm.bias, g.weight, norm.running_mean, norm.running_var
g.weight: 4 units in 2 rows
  produced by g.weight
  also in g.bias, head.weight
1 that stay:
  head.weight (dim 0, 5): they are the model's output
not reached by the example inputs: spare.weight, spare.bias"""


@pytest.fixture(scope="module")
def groups():
    return channel_groups(Net(), torch.zeros(2, 3, 6, 6))


def test_the_listing(groups):
    assert str(groups) == LISTING
    assert len(groups) == 2
    assert [g.size for g in groups] == [8, 4]


def test_reasons(groups):
    assert groups.reason("a.weight") == ""
    assert groups.reason("head.weight") == "they are the model's output"
    assert groups.reason("spare.weight") == "it is not reached by the example inputs"
    assert groups.reason("norm.weight") == "it produces no channels"
    assert groups.unreached == ("spare.weight", "spare.bias")


def test_a_report_gives_each_reason_once():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    (line,) = str(preflight(layer, torch.zeros(2, 3, 8))).split("stays, and why:\n")[1:]
    names, reason = line.strip().split(": ")
    assert names == "linear2.weight, self_attn.out_proj.weight"
    assert reason == "they are combined with something that cannot shrink, in add at the model"


def test_a_weight_that_is_computed_cannot_be_cut():
    first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 2))
    rule = {"op_names": ["0"], "sparsity": 0.5}
    with pytest.raises(
        ConfigError, match="channels of '0' cannot be removed: its weight is computed"
    ):
        L1NormPruner(model, [rule], example_inputs=torch.zeros(2, 8))


def test_asking_for_groups_changes_nothing():
    model = Net().train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    channel_groups(model, torch.randn(2, 3, 6, 6))
    assert model.training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_flags_and_counts_of_a_removal(groups):
    half = {"a.weight": np.arange(8) % 4 < 2, "g.weight": np.arange(4) % 2 == 0}
    assert int(groups.flags(half).sum()) == 6
    before = 8 * 27 + 8 + 16 + 4 * 4 + 4 + 4 * 5 + 5 + 56
    after = 4 * 27 + 4 + 8 + 2 * 2 + 2 + 2 * 5 + 5 + 56
    assert groups.count_parameters() == before
    assert groups.count_parameters(half) == after
    assert groups.count_macs() == 2 * (36 * (8 * 27 + 4 * 4) + 4 * 5)
    assert groups.count_macs(half) == 2 * (36 * (4 * 27 + 2 * 2) + 2 * 5)
    assert groups.count_macs({}) == groups.count_macs()


def test_code_that_was_not_reached_is_noted():
    model, x = randomize(Net().double()).eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    L1NormPruner(model, [{"op_names": ["a"], "sparsity": 0.5}], example_inputs=x).compress()
    result = speedup(model, x)
    assert result.notes == (
        "the example inputs never reach spare.weight, spare.bias; "
        "that code was neither cut nor checked",
    )
    assert model.spare.weight.shape == (7, 7)


def test_unit_of():
    roots = np.array([3, 5, 9])
    assert unit_of(roots, np.array([9, 1, 3, 5, 10, 0])).tolist() == [2, -1, 0, 1, -1, -1]


def flops(model, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    return counter.get_total_flops()


class Attention(nn.Module):
    """Products of activations cost too."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 12) for _ in range(4))
        self.out = nn.Linear(12, 5)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 3)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = (q @ k.mT).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Fused(Attention):
    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 3)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Upward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.ConvTranspose2d(3, 8, 2, 2), nn.ConvTranspose2d(8, 2, 3, padding=1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


MODELS = {
    "net": (Net, (2, 3, 6, 6)),
    "attention": (Attention, (2, 5, 8)),
    "fused attention": (Fused, (2, 5, 8)),
    "transposed": (Upward, (2, 3, 4, 4)),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_macs_are_half_the_flops_that_torch_counts_before_and_after(name):
    cls, shape = MODELS[name]
    model, x = randomize(cls().double()).eval(), torch.randn(shape, dtype=torch.float64)
    groups = channel_groups(model, x)
    reference = Attention() if cls is Fused else model  # torch does not count fused kernels on CPU
    assert 2 * groups.count_macs() == flops(reference.double(), x)
    L1NormPruner(model, [{"op_types": ["default"], "sparsity": 0.5}], example_inputs=x).compress()
    result = speedup(model, x)
    assert result.macs[0] == groups.count_macs()
    assert result.macs[1] < result.macs[0]
    if cls is not Fused:
        assert result.kind == "module"
        assert 2 * result.macs[1] == flops(result.model, x)
    assert result.parameters[1] == sum(p.numel() for p in result.model.parameters())


@settings(max_examples=4, deadline=None, derandomize=True)
@given(specs)
def test_costs_of_random_networks_are_those_that_torch_counts(spec):
    model, x = build(spec).eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    groups = channel_groups(model, x)
    assert groups.count_parameters() == sum(p.numel() for p in model.parameters())
    kinds = {kind for kind, *_ in (spec[2] or (0, [], 0))[1]}
    options = {x for block in (spec[2] or (0, [], 0))[1] for x in block}
    if not kinds & {"rnn", "torch"} and not options & {"qkv", "plain", "gqa", "mqa"}:
        assert 2 * groups.count_macs() == flops(model, x)


def test_a_budget_in_the_rules_is_met_by_the_shrunk_model():
    model, x = randomize(Net().double()).eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    rules = [{"op_types": ["Conv2d"], "max_macs": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    result = speedup(model, x)
    assert result.macs[1] <= 0.5 * result.macs[0]
    assert 2 * result.macs[1] == flops(result.model, x)


def test_tensors_that_are_not_the_models_own_are_only_read():
    outside = torch.randn(1)

    class Scaled(nn.Module):
        of_class = torch.randn(1)

        def __init__(self):
            super().__init__()
            self.make, self.read = nn.Linear(6, 8), nn.Linear(8, 3)
            self.of_module = torch.randn(1)

        def forward(self, x):
            return self.read(self.make(x).relu() * outside * self.of_class) + self.of_module

    model, x = Scaled(), torch.randn(2, 6)
    expected = model(x)
    (group,) = channel_groups(model, x)
    assert group.size == 8 and torch.equal(model(x), expected)
