"""Shrinking: the same object, the same function, and training that goes on."""

import copy
import io
import logging
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_nets import OwnRMSNorm, randomize
from torch import nn

from lilliput.errors import StateError, UnsupportedModelError
from lilliput.frameworks.torch.sidecar import narrow_of
from lilliput.pruning.l1 import L1NormPruner
from lilliput.speedup.shrink import speedup
from lilliput.torch import strip

ALL = [{"op_types": ["default"], "sparsity": 0.5}]


class ConvNet(nn.Module):
    """conv - norm - relu - dropout - conv - flatten - linear."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.head(torch.relu(self.second(x)).flatten(1))


def image(dtype=torch.float64, batch=2):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, 3, 4, 4, dtype=torch.float64, generator=generator).to(dtype)


def tokens(width, dtype=torch.float64, length=5):
    generator = torch.Generator().manual_seed(6)
    return torch.randn(2, length, width, dtype=torch.float64, generator=generator).to(dtype)


def prune(model, x, rules=ALL):
    """Randomize a model, mask it and return it with what it computes; the pruner stays on."""
    model = randomize(model.double())
    L1NormPruner(model, rules, example_inputs=x).compress()
    with torch.no_grad():
        return model, first(model.eval()(x))


def first(output):
    return output[0] if isinstance(output, tuple) else output


def shrink(model, x, rules=ALL, kind="module", **options):
    """Prune, shrink, check the outputs, and return the result."""
    model, masked = prune(model, x, rules)
    result = speedup(model, x, **options)
    assert relative(first(result.model(x)), masked) <= 1e-10
    assert result.kind == kind, result
    assert count(result.model) == result.parameters[1] < result.parameters[0]
    return result


def count(model):
    return sum(p.numel() for p in model.parameters())


def relative(a, b):
    return float((a.detach() - b.detach()).abs().max() / b.detach().abs().max())


# -- the same object -------------------------------------------------------------------------------


def test_model_and_parameters_stay_the_same_objects():
    model = ConvNet()
    before = dict(model.named_parameters())
    modules = dict(model.named_modules())
    result = shrink(model, image())
    assert result.model is model
    assert type(model) is ConvNet
    assert dict(model.named_modules()) == modules
    assert {name: id(p) for name, p in model.named_parameters()} == {
        n: id(p) for n, p in before.items()
    }
    assert {n: tuple(p.shape) for n, p in before.items()} == {
        "first.weight": (4, 3, 3, 3),
        "first.bias": (4,),
        "norm.weight": (4,),
        "norm.bias": (4,),
        "second.weight": (3, 4, 3, 3),
        "second.bias": (3,),
        "head.weight": (5, 48),
        "head.bias": (5,),
    }
    assert [type(m) for m in (model.first, model.norm, model.head)] == [
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.Linear,
    ]
    assert (model.first.out_channels, model.second.in_channels, model.second.out_channels) == (
        4,
        4,
        3,
    )
    assert (model.norm.num_features, model.head.in_features) == (4, 48)
    assert model.norm.running_mean.shape == (4,)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_kept_values_are_bit_for_bit_those_of_the_masked_model():
    model, x = ConvNet(), image()
    model, _ = prune(model, x)
    weight, bias = model.first.weight.detach().clone(), model.norm.bias.detach().clone()
    mean = model.norm.running_mean.clone()
    keep = weight.flatten(1).any(1)
    speedup(model, x)
    assert int(keep.sum()) == 4
    assert torch.equal(model.first.weight, weight[keep])
    assert torch.equal(model.norm.bias, bias[keep])
    assert torch.equal(model.norm.running_mean, mean[keep])


def test_modes_and_frozen_parameters_are_kept():
    model, x = randomize(ConvNet().double()), image()
    model.first.weight.requires_grad_(False)
    L1NormPruner(model, ALL, example_inputs=x).compress()
    model.train()
    model.norm.eval()
    speedup(model, x)
    assert {name: m.training for name, m in model.named_modules()} == {
        "": True,
        **dict.fromkeys(("first", "drop", "second", "head"), True),
        "norm": False,
    }
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    assert flags.pop("first.weight") is False
    assert set(flags.values()) == {True}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
def test_the_dtype_is_kept(dtype, tolerance):
    model, x = randomize(ConvNet()).to(dtype), image(dtype)
    L1NormPruner(model, ALL, example_inputs=x).compress()
    masked = model.eval()(x)
    result = speedup(model, x)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.norm.running_var.dtype == dtype
    assert relative(result.model(x), masked) <= tolerance
    assert result.error <= 1e-10  # compared in double precision


def test_gradients_are_cut_along():
    model, x = ConvNet(), image()
    prune(model, x)
    model(x).sum().backward()
    gradient = dict(model.named_parameters())["head.weight"].grad.clone()
    keep = model.head.weight.detach().any(0)
    speedup(model, x)
    assert model.head.weight.grad.shape == (5, 48)
    assert torch.equal(model.head.weight.grad, gradient[:, keep])


# -- the same function -----------------------------------------------------------------------------


def test_a_shift_after_a_removed_filter_goes_too():
    """NNI cut filters whose norm still gave relu(shift): here masks cover the norm as well."""
    model, x = ConvNet(), image()
    with torch.no_grad():
        model.norm.bias.fill_(3.0)
    model, masked = prune(model, x)
    assert int((model.norm.bias == 0).sum()) == 4
    result = speedup(model, x)
    assert relative(result.model(x), masked) <= 1e-12


def test_against_a_formula_with_kept_channels_only():
    """Conv 1×1 - norm - relu - conv 1×1 in NumPy, from the raw weights."""
    model = randomize(
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)).double()
    ).eval()
    x = image()
    w, b, scale, shift, out, out_bias = (p.detach().numpy().copy() for p in model.parameters())
    mean, var = (model[1].get_buffer(f"running_{name}").numpy().copy() for name in ("mean", "var"))
    keep = np.sort(np.argsort(np.abs(w).sum((1, 2, 3)), kind="stable")[4:])
    y = np.einsum("oi,nihw->nohw", w[keep, :, 0, 0], x.numpy()) + b[keep, None, None]
    y = (y - mean[keep, None, None]) / np.sqrt(var[keep, None, None] + 1e-5)
    y = np.maximum(y * scale[keep, None, None] + shift[keep, None, None], 0)
    y = np.einsum("oi,nihw->nohw", out[:, keep, 0, 0], y) + out_bias[:, None, None]
    L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    np.testing.assert_allclose(model(x).detach().numpy(), y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        speedup(model, x).model(x).detach().numpy(), y, rtol=1e-12, atol=1e-12
    )


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.g = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 8, 3, padding=1, groups=4)
        self.b = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.b(torch.relu(self.g(torch.relu(self.a(x)))))


def test_groups_of_a_convolution_keep_equally_many_channels_of_their_own_choice():
    model, x = Grouped(), image()
    model, masked = prune(model, x, [{"op_names": ["a"], "sparsity": 0.34}])
    kept = model.a.weight.detach().flatten(1).any(1).view(4, 3)
    assert kept.sum(1).tolist() == [2, 2, 2, 2]
    result = speedup(model, x)
    assert model.g.weight.shape == (8, 2, 3, 3)
    assert (model.g.groups, model.g.in_channels) == (4, 8)
    assert relative(result.model(x), masked) <= 1e-12


def test_each_group_keeps_inputs_of_its_own():
    """The first group loses its first input, the second its last."""
    model, x = Grouped(), image()
    randomize(model.double())
    with torch.no_grad():
        gone = torch.tensor([0, 5, 7, 9])
        model.a.weight[gone] = 1e-6
    L1NormPruner(model, [{"op_names": ["a"], "sparsity": 0.34}], example_inputs=x).compress()
    assert model.a.weight.detach().flatten(1).any(1).logical_not().nonzero().flatten().tolist() == [
        0,
        5,
        7,
        9,
    ]
    masked = model.eval()(x)
    assert relative(speedup(model, x).model(x), masked) <= 1e-12


class SelfAttention(nn.Module):
    """Heads from an attribute, as vision transformers do."""

    def __init__(self, width=12, heads=4, head_dim=3, scale=None):
        super().__init__()
        self.num_heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, 5)
        self.scale = scale

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.proj(y.transpose(1, 2).reshape(n, t, self.num_heads * self.head_dim))


def test_whole_heads_go_and_the_attribute_follows():
    model = SelfAttention()
    shrink(model, tokens(12))
    assert (model.num_heads, model.head_dim) == (2, 3)
    assert (model.qkv.weight.shape, model.proj.weight.shape) == ((18, 12), (5, 6))


def test_the_scale_of_attention_stays_that_of_the_full_head():
    """Head size is kept, so 1/sqrt(3) stays; weights are large so that a wrong scale would show."""
    model, x = SelfAttention(), tokens(12) * 5
    model, masked = prune(model, x)
    speedup(model, x)
    n, t, _ = x.shape
    q, k, v = model.qkv(x).view(n, t, 3, 2, 3).permute(2, 0, 3, 1, 4)
    by_hand = ((q @ k.mT) / 3**0.5).softmax(-1) @ v
    by_hand = model.proj(by_hand.transpose(1, 2).reshape(n, t, 6))
    assert relative(by_hand, masked) <= 1e-12
    wrong = ((q @ k.mT) / 2**0.5).softmax(-1) @ v
    assert relative(model.proj(wrong.transpose(1, 2).reshape(n, t, 6)), masked) > 1e-4


class TiedLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.relu(self.hidden(self.table(x))))


def test_tied_weights_stay_tied():
    model, x = randomize(TiedLanguageModel().double()), torch.arange(10).view(2, 5)
    L1NormPruner(model, ALL, example_inputs=x).compress()
    masked = model(x)
    result = speedup(model, x)
    assert result.kind == "module"
    assert model.head.weight is model.table.weight
    assert model.table.weight.shape == (11, 4)
    assert (model.table.embedding_dim, model.head.in_features) == (4, 4)
    assert relative(model(x), masked) <= 1e-12


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.shared, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.shared(self.shared(self.up(x)).sigmoid()).sigmoid())


def test_a_module_called_twice_is_cut_once():
    model = Twice()
    shrink(model, tokens(3))
    assert model.shared.weight.shape == (4, 4)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_lose_hidden_units(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = make(3, 8, 2, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    model = Net()
    shrink(model, tokens(3))
    assert model.rnn.hidden_size == 4
    assert model.rnn.weight_hh_l1.shape == (model.rnn.weight_hh_l0.shape[0], 4)
    assert all(any(a is p for p in model.rnn.parameters()) for a in model.rnn._flat_weights)


class ZeroBranch(nn.Module):
    """A branch that starts at zero, as adapters and residual blocks do."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)
        self.up, self.down = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(self.a(x).relu()) + self.down(self.up(x).relu())


def test_a_layer_that_is_all_zero_keeps_one_channel():
    x = tokens(3)
    model = randomize(ZeroBranch().double())
    with torch.no_grad():
        for parameter in (*model.up.parameters(), *model.down.parameters()):
            parameter.zero_()
    L1NormPruner(model, [{"op_names": ["a"], "sparsity": 0.5}], example_inputs=x).compress()
    masked = model(x)
    result = speedup(model, x)
    assert result.removed == {"a.weight": (4, 8), "up.weight": (5, 6)}
    assert model.up.weight.shape == (1, 3)
    assert relative(model(x), masked) <= 1e-12


# -- code with sizes that cannot be set from outside -----------------------------------------------


class Literal(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(3, 12), nn.Dropout(0.5), nn.Linear(12, 2)

    def forward(self, x):
        y = self.a(x).view(-1, 12).relu()
        return self.b(self.drop(y))


class LiteralInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.inner, self.head = nn.Linear(3, 8), Literal(), nn.Linear(2, 4)
        self.inner.a = nn.Linear(8, 12)

    def forward(self, x):
        return self.head(self.inner(self.up(x).tanh()))


def test_a_number_in_the_code_of_the_model_makes_it_a_graph():
    x = tokens(3)[:, 0]
    result = shrink(Literal(), x, kind="graph")
    assert {name: tuple(p.shape) for name, p in result.model.named_parameters()} == {
        "a.weight": (6, 3),
        "a.bias": (6,),
        "b.weight": (2, 6),
        "b.bias": (2,),
    }
    assert "captured, since its own code cannot run on fewer channels" in result.notes[0]
    assert "test_speedup.py" in result.notes[0]


def test_a_number_in_the_code_of_a_part_captures_only_that_part():
    x = tokens(3)[:, 0]
    model = LiteralInside()
    up = model.up
    result = shrink(model, x, kind="mixed")
    assert result.model is model
    assert result.plan.graphs == ("inner",)
    assert model.up is up
    assert sorted(dict(model.named_parameters())) == sorted(
        dict(LiteralInside().named_parameters())
    )


def test_graphs_can_be_forbidden_and_nothing_changes():
    x = tokens(3)[:, 0]
    model, masked = prune(Literal(), x)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(
        UnsupportedModelError, match=r"own code cannot run on fewer channels.*test_speedup.py"
    ):
        speedup(model, x, allow_graph=False)
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: v.shape for k, v in state.items()
    }
    assert torch.equal(model(x), masked)


class LiteralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.b = nn.Linear(8 * 16, 2)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x))).view(-1, 128))


def test_train_and_eval_switch_dropout_and_norms_of_a_graph():
    x = image()
    model = shrink(LiteralNet(), x, kind="graph").model
    before = model.norm.running_mean.clone()
    evaluated = model(x)
    assert torch.equal(model(x), evaluated)
    assert torch.equal(model.norm.running_mean, before)
    model.train()
    torch.manual_seed(0)
    one, two = model(x), model(x)
    assert not torch.equal(one, two)
    assert not torch.equal(model.norm.running_mean, before)
    model.norm.running_mean.copy_(before)
    after = model.eval()(x)
    assert torch.equal(after, model(x))


class WithoutRunningStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Linear(8 * 16, 2)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.each = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x):
        return self.b(self.each(torch.relu(self.norm(self.a(x)))).view(-1, 128))


def test_norms_without_running_statistics_are_the_same_in_every_mode_of_a_graph():
    x = image()
    model = shrink(WithoutRunningStatistics(), x, kind="graph").model
    expected = model(x)
    assert torch.equal(model.train()(x), expected)
    assert torch.equal(model.eval()(x), expected)
    assert torch.equal(copy.deepcopy(model).train()(x), expected)


def test_a_graph_trains():
    x = image()
    model = shrink(LiteralNet(), x, kind="graph").model
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


# -- torch's own attention, and its fused path -----------------------------------------------------


class Encoder(nn.Module):
    def __init__(self, norm_first=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            12, 4, 16, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_is_the_same_on_every_path(norm_first):
    x = tokens(12)
    model, masked = prune(Encoder(norm_first), x)
    result = speedup(model, x)
    assert result.parameters[1] < 0.6 * result.parameters[0]
    assert count(result.model) == result.parameters[1]
    with_gradients = result.model(x)
    with torch.no_grad():  # the fused path
        without = result.model(x)
    assert with_gradients.requires_grad
    assert relative(with_gradients, masked) <= 1e-10
    assert relative(without, masked) <= 1e-10


class Attending(nn.Module):
    def __init__(self, separate=False):
        super().__init__()
        sizes = {"kdim": 6, "vdim": 6} if separate else {}
        self.up, self.side = nn.Linear(3, 12), nn.Linear(3, 6)
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True, **sizes)
        self.head = nn.Linear(12, 2)
        self.separate = separate

    def forward(self, x):
        y = self.up(x)
        other = self.side(x) if self.separate else y
        return self.head(self.attention(y, other, other, need_weights=False)[0])


@pytest.mark.parametrize("separate", [False, True])
def test_multihead_attention(separate):
    x = tokens(3)
    model, masked = prune(Attending(separate), x)
    result = speedup(model, x)
    assert count(result.model) == result.parameters[1] < result.parameters[0]
    with torch.no_grad():
        assert relative(result.model(x), masked) <= 1e-10
    assert relative(result.model(x), masked) <= 1e-10


# -- norms see kept channels only ------------------------------------------------------------------


class Normed(nn.Module):
    """linear or conv - norm - linear or conv, with a norm over channels."""

    def __init__(self, kind, width=8):
        super().__init__()
        is_map = kind.startswith("group")
        make = (lambda a, b: nn.Conv2d(a, b, 1)) if is_map else nn.Linear
        self.a = make(3, width)
        self.norm = {
            "layer": lambda: nn.LayerNorm(width),
            "plain": lambda: nn.LayerNorm(width, elementwise_affine=False),
            "rms": lambda: nn.RMSNorm(width, eps=1e-6),
            "own": lambda: OwnRMSNorm(width),
            "group": lambda: nn.GroupNorm(1, width),
            "groups": lambda: nn.GroupNorm(2, width),
        }[kind]()
        self.b = make(width, 2)

    def forward(self, x):
        return self.b(torch.sigmoid(self.norm(self.a(x))))


NORMS = ["layer", "plain", "rms", "own", "group", "groups"]


def kept_of(model):
    return model.a.weight.detach().flatten(1).any(1)


def small_twin(model, kind):
    """Return a small model of the same class with the kept entries, built by hand."""
    keep = kept_of(model)
    twin = Normed(kind, int(keep.sum())).double()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            full = dict(model.named_parameters())[name].detach()
            dim = {"a.weight": 0, "a.bias": 0, "b.weight": 1, "b.bias": None}.get(name, 0)
            parameter.copy_(
                full if dim is None else full.index_select(dim, keep.nonzero().flatten())
            )
    return twin, keep


@pytest.mark.parametrize("kind", NORMS)
def test_a_masked_norm_computes_and_learns_as_the_small_model_does(kind):
    x = image() if kind.startswith("group") else tokens(3)
    model, masked = prune(Normed(kind), x)
    twin, keep = small_twin(model, kind)
    assert int(keep.sum()) == 4
    assert relative(masked, twin(x)) <= 1e-12
    model.train()(x).square().sum().backward()
    twin.train()(x).square().sum().backward()
    small = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if name != "b.bias":
            dim = 1 if name == "b.weight" else 0
            assert not grad.index_select(dim, (~keep).nonzero().flatten()).any(), name
            grad = grad.index_select(dim, keep.nonzero().flatten())
        torch.testing.assert_close(grad, small[name].grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_shrinks_to_what_it_computed(kind):
    x = image() if kind.startswith("group") else tokens(3)
    model = Normed(kind)
    randomize(model.double())
    L1NormPruner(model, ALL, example_inputs=x).compress()
    twin, _ = small_twin(model, kind)
    result = speedup(model.eval(), x)
    assert relative(result.model(x), twin(x)) <= 1e-12
    assert narrow_of(model.norm) is None
    assert type(model.norm) is type(twin.norm)


def test_a_copy_of_a_masked_norm_sees_kept_channels_too():
    x = tokens(3)
    model, masked = prune(Normed("layer"), x)
    twin = copy.deepcopy(model)
    assert narrow_of(twin.norm) is not None
    assert torch.equal(twin(x), masked)
    assert torch.equal(model(x), masked)


@pytest.mark.parametrize("kind", ["layer", "own"])
def test_strip_gives_back_a_plain_norm(kind):
    x = tokens(3)
    model, _ = prune(Normed(kind), x)
    plain = strip(model)
    fresh = Normed(kind).double()
    assert type(plain.norm) is type(fresh.norm)
    fresh.load_state_dict(plain.state_dict())
    assert torch.equal(plain(x), fresh(x))
    assert not plain.norm._forward_pre_hooks
    assert int((plain.a.weight == 0).all(1).sum()) == 4


# -- optimizers ------------------------------------------------------------------------------------


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1)
        self.ln, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.b(torch.relu(self.norm(self.a(x))))
        return self.head(torch.sigmoid(self.ln(x.mean((2, 3)))))


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_training_goes_on_as_if_only_masked(name):
    x, y = image(batch=6), torch.randn(6, 3, dtype=torch.float64)
    model = randomize(Trained().double())
    optimizer = OPTIMIZERS[name](model.parameters())
    pruner = L1NormPruner(model, ALL, optimizer, example_inputs=x)
    pruner.compress()
    model.train()
    for _ in range(3):
        step(model, optimizer, x, y)
    masked, theirs = copy.deepcopy((model, optimizer))
    holes = {n: p.detach() == 0 for n, p in masked.named_parameters()}
    keep = {"a": ~holes["a.bias"], "b": ~holes["b.bias"]}
    assert [int(k.sum()) for k in keep.values()] == [4, 3]
    speedup(model, x, optimizer=optimizer)
    assert [type(m) for m in (model.a, model.ln)] == [nn.Conv2d, nn.LayerNorm]
    for _ in range(3):
        step(model, optimizer, x, y)
        step(masked, theirs, x, y)
        with torch.no_grad():  # the copy has no pruner to hold its zeros
            for n, p in masked.named_parameters():
                p[holes[n]] = 0
    full = dict(masked.named_parameters())
    a, b = keep["a"], keep["b"]
    expected = {
        "a.weight": full["a.weight"][a],
        "norm.bias": full["norm.bias"][a],
        "b.weight": full["b.weight"][b][:, a],
        "ln.weight": full["ln.weight"][b],
        "head.weight": full["head.weight"][:, b],
        "head.bias": full["head.bias"],
    }
    for n, value in expected.items():
        received = dict(model.named_parameters())[n]
        torch.testing.assert_close(received, value, rtol=1e-6, atol=1e-9, msg=n)
    torch.testing.assert_close(model.norm.running_mean, masked.norm.running_mean[a])


def test_what_an_optimizer_remembers_has_the_new_shapes():
    x = image()
    model = randomize(ConvNet().double())
    optimizer = OPTIMIZERS["adam"](model.parameters())
    L1NormPruner(model, ALL, optimizer, example_inputs=x).compress()
    step(model, optimizer, x, torch.zeros(2, 5, dtype=torch.float64))
    speedup(model, x, optimizer=optimizer)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert float(state["step"]) == 1
    assert not optimizer._optimizer_step_post_hooks


def test_the_optimizer_trains_the_parameters_of_a_captured_graph():
    x, y = image(), torch.zeros(2, 2, dtype=torch.float64)
    model = randomize(LiteralNet().double())
    model.b.bias.requires_grad_(False)
    optimizer = OPTIMIZERS["sgd"](p for p in model.parameters() if p.requires_grad)
    L1NormPruner(model, ALL, optimizer, example_inputs=x).compress()
    step(model, optimizer, x, y)
    raw = dict(model.named_parameters())["a.weight"]
    momentum = optimizer.state[raw]["momentum_buffer"].clone()
    keep = raw.detach().flatten(1).any(1)
    graph = speedup(model, x, optimizer=optimizer).model
    after = dict(graph.named_parameters())
    assert [name for name, p in after.items() if not p.requires_grad] == ["b.bias"]
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert held == [id(p) for name, p in after.items() if name != "b.bias"]
    assert list(optimizer.state) and all(id(p) in held for p in optimizer.state)
    assert torch.equal(optimizer.state[after["a.weight"]]["momentum_buffer"], momentum[keep])
    before = after["a.weight"].detach().clone()
    step(graph, optimizer, x, y)
    assert not torch.equal(after["a.weight"], before)


# -- masks of filters only -------------------------------------------------------------------------


def test_masks_of_filters_only_are_completed_on_demand(caplog):
    model, x = randomize(ConvNet().double()).eval(), image()
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}]).compress()  # no example_inputs
    filters = model.first.weight.detach().flatten(1).any(1)
    before = model(x)
    with caplog.at_level(logging.WARNING, logger="lilliput"):
        result = speedup(model, x, extend_masks=True)
    assert "masks covered only filters and were extended" in caplog.text
    assert any("changes the outputs by up to" in note for note in result.notes)
    assert "changes the outputs" in str(result)
    assert model.first.weight.shape[0] == int(filters.sum()) == 4
    assert relative(result.model(x), before) > 1e-3
    # by hand: the channels are gone, whatever the norm made of them
    twin = randomize(ConvNet().double()).eval()
    with torch.no_grad():
        twin.second.weight[:, ~filters] = 0
    assert relative(result.model(x), twin(x)) <= 1e-10


# -- afterwards ------------------------------------------------------------------------------------


def test_a_shrunk_module_can_be_copied_saved_and_captured_again():
    x = image()
    model = shrink(ConvNet(), x).model
    expected = model(x)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), expected)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)


def test_a_captured_graph_can_be_copied_and_captured_again():
    x = image()
    model = shrink(LiteralNet(), x, kind="graph").model
    expected = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), expected)
    assert twin.train()(x).shape == (2, 2)
    twin.load_state_dict(model.state_dict())
    assert relative(torch.export.export(model, (x,)).module()(x), expected) <= 1e-12


def test_a_captured_graph_says_how_it_is_saved():
    model = shrink(LiteralNet(), image(), kind="graph").model
    with pytest.raises(StateError, match=r"save\(folder\)"):
        torch.save(model, io.BytesIO())


def test_a_model_whose_outputs_are_random_cannot_be_checked():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(nn.functional.dropout(self.first(x), training=True))

    model, x = Noisy(), torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=x).compress()
    with pytest.raises(
        UnsupportedModelError, match="returns different outputs for the same inputs"
    ):
        speedup(model, x)
    assert model.first.weight.shape == (8, 4)


def test_an_onnx_file_of_the_shrunk_model_gives_the_same_numbers(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = image()
    model = shrink(ConvNet(), x).model.float()
    file = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        torch.onnx.export(model, (x.float(),), str(file), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (received,) = session.run(None, {session.get_inputs()[0].name: x.float().numpy()})
    np.testing.assert_allclose(received, model(x.float()).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_report_tells_what_happened():
    result = shrink(ConvNet(), image())
    text = str(result)
    assert "removed     7 of 14 units in 2 channel groups" in text
    assert f"parameters  {result.parameters[0]:,} → {result.parameters[1]:,}" in text
    assert "runs as     your own module" in text
    assert result.removed == {"first.weight": (4, 8), "second.weight": (3, 6)}
    assert result.macs[1] < result.macs[0]
