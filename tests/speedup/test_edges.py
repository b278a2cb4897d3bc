"""Where a plausible implementation gives wrong numbers without an error."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError, StageError, StateError, UnsupportedModelError
from lilliput.torch import L1NormPruner, LevelPruner, TaylorFOWeightPruner, load, speedup

X = torch.randn(4, 8)
ALL = [{"op_types": ["default"], "sparsity": 0.5}]
FIRST = [{"op_names": ["first"], "sparsity": 0.5}]


def prune(model, x=X, rules=ALL, **given):
    return L1NormPruner(model, rules, example_inputs=x, **given).compress()


class TwoLayers(nn.Module):
    """Two layers; what happens between and around them is up to the subclass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x, pad=None):
        return self.last(self.attention(x, x, x, key_padding_mask=pad)[0])


def test_a_captured_part_refuses_an_argument_that_was_none_when_it_was_captured():
    model, x = Padded().eval(), torch.randn(2, 5, 8)
    prune(model, x, [{"op_types": ["MultiheadAttention"], "sparsity": 0.5}])
    single = model(x[:1]).detach()
    result = speedup(model, x)
    assert result.kind == "mixed"
    assert torch.allclose(result.model(x[:1]), single, atol=1e-6)
    with pytest.raises(
        StageError, match="captured from a call with different arguments|captured for None"
    ):
        result.model(x, torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(StageError):
        copy.deepcopy(result.model)(x, torch.zeros(2, 5, dtype=torch.bool))


class ByLength(TwoLayers):
    def forward(self, x):
        batch, length, _ = x.shape
        h = self.first(x).reshape(batch * length, 16).relu()
        return self.last(h).reshape(batch, length, 3) / math.sqrt(length)


def test_a_captured_graph_refuses_sizes_that_its_code_depends_on():
    x = torch.randn(2, 6, 8)
    model = prune(ByLength(), x, FIRST)
    many = model(x.repeat(5, 1, 1)).detach()
    result = speedup(model, x)
    assert torch.allclose(result.model(x.repeat(5, 1, 1)), many, atol=1e-6)
    with pytest.raises(StageError, match=r"\(2, 9, 8\)"):
        result.model(torch.randn(2, 9, 8))


def norms():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU()),
        *(nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 3)),
    )


def test_a_second_pruner_leaves_the_norms_of_the_first_alone():
    model = prune(norms(), rules=[{"op_names": ["0"], "sparsity": 0.5}])
    before = model(X).detach()
    prune(model, rules=[{"op_names": ["3"], "sparsity": 0.0}])
    assert torch.equal(model(X), before)
    level = LevelPruner(model, [{"op_names": ["5"], "sparsity": 0.0}])
    level.compress()
    level.strip()
    assert torch.equal(model(X), before)


def test_two_pruners_shrink_together():
    model = prune(norms(), rules=[{"op_names": ["0"], "sparsity": 0.5}])
    prune(model, rules=[{"op_names": ["3"], "sparsity": 0.5}])
    before = model.eval()(X).detach()
    shrunk = speedup(model, X).model
    assert (shrunk[0].out_features, shrunk[3].out_features) == (8, 12)
    assert torch.allclose(shrunk(X), before, atol=1e-6)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.norm = nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, x):
        return self.c(self.norm(self.b(self.norm(self.a(x)).relu())).relu())


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.bn(x) - x.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    "make", [Shared, lambda: nn.Sequential(nn.Linear(8, 16), Stateful(), nn.Linear(16, 3))]
)
def test_norms_that_cannot_be_narrowed_keep_their_channels(make):
    with pytest.raises(ConfigError, match="channels is computed inside a larger module"):
        prune(make())


class Constants(TwoLayers):
    def __init__(self):
        super().__init__()
        self.scales = {"a": torch.tensor(3.0)}

    def forward(self, x):
        return self.last(self.first(x).relu()) * self.scales["a"]


def test_a_dict_of_constants_is_not_taken_for_a_cache():
    model = prune(Constants())
    before = model(X).detach()
    result = speedup(model, X)
    assert torch.allclose(result.model(X), before, atol=1e-6)
    assert list(model.scales) == ["a"]


class Hidden(nn.Module):
    """Divides by the number of channels, behind a head of zeros that hides it."""

    def __init__(self):
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h.sum(1, keepdim=True) / h.shape[1] * self.mid(x))


def test_a_head_of_zeros_does_not_hide_a_difference():
    model = prune(Hidden(), rules=FIRST)
    masked = copy.deepcopy(model)
    result = speedup(model, X)
    for twin in (masked, result.model):
        nn.init.ones_(twin.last.weight)
    assert torch.allclose(result.model(X), masked(X), atol=1e-6)


def test_inputs_without_a_number_check_nothing():
    model = prune(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)))
    with pytest.raises(UnsupportedModelError, match="no finite number"):
        speedup(model, torch.full((2, 8), math.nan))


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(8, 16), nn.Linear(5, 3)
        self.register_buffer("table", torch.randn(16, 5))

    def forward(self, x):
        return self.c(torch.sigmoid(self.a(x)) @ self.table)


def test_a_buffer_that_reads_channels_keeps_them():
    with pytest.raises(ConfigError, match="a sum over channels"):
        prune(Projected())


def test_a_loss_that_is_still_alive_does_not_break_training():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    prune(model, optimizer=optimizer)
    loss = model(X).sum()
    loss.backward()
    optimizer.step()
    model = speedup(model, X).model  # the pruner's optimizer is cut along
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.step()
    assert model[0].weight.grad.shape == (8, 8)
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (8, 8)
    assert loss.requires_grad


def test_an_optimizer_that_cannot_be_cut_is_refused_before_anything_changes():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adafactor(model.parameters())
    pruner = L1NormPruner(model, ALL, optimizer, example_inputs=X)
    pruner.compress()
    model(X).sum().backward()
    optimizer.step()
    with pytest.raises(UnsupportedModelError, match="Adafactor keeps"):
        speedup(model, X)
    with pytest.raises(UnsupportedModelError, match="received str"):
        speedup(model, X, optimizer="adam")
    assert model[0].out_features == 16
    assert pruner.is_wrapped


def test_a_part_of_the_pruned_model_is_refused():
    model = prune(nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), nn.Linear(8, 3)))
    with pytest.raises(StageError, match="a larger model than this part"):
        speedup(model[0], X)


def test_a_pruner_that_waits_for_data_is_named():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))
    TaylorFOWeightPruner(model, ALL, example_inputs=X).compress()
    with pytest.raises(StageError, match="TaylorFOWeightPruner has not seen its data"):
        speedup(model, X)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["cuts"][0].update(keep=[0, 10**30]),
        lambda d: d["cuts"][0].update(keep=[0, 0]),
        lambda d: d["cuts"][0].update(keep=[-1, 0]),
        lambda d: d["attributes"].append({"module": "", "name": "forward", "value": 3}),
        lambda d: d["attributes"].append({"module": "0", "name": "training", "value": 3}),
        lambda d: d["attributes"].append({"module": "nowhere", "name": "x", "value": 3}),
    ],
)
def test_a_plan_may_only_cut_and_set_sizes(change, tmp_path):
    def make():
        return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))

    speedup(prune(make()), X).save(tmp_path)
    path = tmp_path / "lilliput.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    fresh = make()
    with pytest.raises(StateError):
        load(fresh, tmp_path)
    assert fresh[0].weight.shape == (16, 8)


class UnusedLast(nn.Module):
    """Each block also makes what the next one reads: of the last one nobody does."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.skips = nn.ModuleList(nn.Linear(8, 12) for _ in range(3))
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        x, total = x.relu() @ torch.eye(8), 0
        for block, skip in zip(self.blocks, self.skips, strict=True):
            total, x = total + skip(x), block(x).relu()
        return self.last(total)


def test_a_layer_that_runs_for_nothing_is_cut_along():
    torch.manual_seed(0)
    model = UnusedLast().eval()
    prune(model)
    masked = model(X).detach()
    result = speedup(model, X)
    assert result.kind == "module" and torch.allclose(result.model(X), masked, atol=1e-6)
    assert model.blocks[2].in_features == 4
    assert result.parameters[1] == sum(p.numel() for p in result.model.parameters())


class Overwriting(nn.Module):
    """Normalizes what it is given in place."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        x.mul_(0.5)
        return self.last(torch.relu(self.first(x)))


def test_a_model_that_writes_to_its_input_is_cut_and_the_example_is_left_as_it_was():
    model, x = Overwriting().eval(), torch.randn(2, 4)
    before = x.clone()
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=x).compress()
    result = speedup(model, x)
    assert result.removed and torch.equal(x, before)
