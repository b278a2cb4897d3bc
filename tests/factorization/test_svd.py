"""SVDFactorizer: against NumPy's decomposition, executed, trained and exported."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import AlgorithmError, ConfigError, StageError, UnsupportedModelError
from lilliput.torch import LevelPruner, SVDFactorizer, export_onnx


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.conv2 = nn.Conv2d(16, 32, 3, 2, (1, 2), 2, bias=False, padding_mode="reflect")
        self.fc = nn.Linear(32, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.depthwise(F.relu(self.conv1(x))))))
        return self.head(F.relu(self.fc(x.mean((2, 3)))))


def truncated(weight, rank):
    matrix = weight.detach().double().numpy().reshape(len(weight), -1)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return torch.tensor((left[:, :rank] * values[:rank]) @ right[:rank]).reshape(weight.shape)


def test_the_model_computes_what_it_computes_with_the_truncated_weights():
    torch.manual_seed(0)
    model = Net().eval()
    expected = copy.deepcopy(model)
    factorizer = SVDFactorizer(model, [{"rank": 7}])
    assert factorizer.compress() is model
    assert factorizer.result.ranks == {"conv1": 7, "conv2": 7, "fc": 7, "head": 7} | {}
    assert "groups" in factorizer.result.left["depthwise"]
    with torch.no_grad():
        for name in factorizer.result.ranks:
            weight = getattr(expected, name).weight
            weight.copy_(truncated(weight, 7))
    x = torch.randn(5, 3, 12, 12)
    assert torch.allclose(model(x), expected(x), atol=1e-5)
    assert model.head[1].bias is not None and model.conv2[1].bias is None
    before = sum(p.numel() for p in expected.parameters())
    after = sum(p.numel() for p in model.parameters())
    receipt = factorizer.result.receipt
    assert (receipt.before.parameters, receipt.after.parameters) == (before, after)
    assert receipt.after.bytes == 4 * after and after < before
    assert "rank 7" in str(factorizer.result) and "×" in str(receipt)


@pytest.mark.parametrize(
    ("rule", "rank"), [({"parameters": 0.5}, 4), ({"energy": 0.9}, 3), ({"rank": 5}, 5)]
)
def test_the_rank_is_the_one_asked_for(rule, rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 12))
    values = np.array([8.0, 4.0, 3.2, *[1.0] * 9])  # 64 + 16 + 10.24 of 99.24: 91 %
    left, right = (
        np.linalg.qr(np.random.default_rng(i).standard_normal((n, 12)))[0]
        for i, n in enumerate((12, 24))
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor((left * values) @ right.T))
    factorizer = SVDFactorizer(model, [rule])
    factorizer.compress()
    assert factorizer.result.ranks == {"0": rank}
    assert factorizer.result.energies["0"] == pytest.approx(
        np.square(values[:rank]).sum() / 99.24, 1e-5
    )
    assert model[0][0].out_features == rank


def test_what_would_not_be_smaller_stays():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 64))
    factorizer = SVDFactorizer(model, [{"energy": 0.999}])
    factorizer.compress()
    assert type(model[0]) is nn.Linear and set(factorizer.result.left) >= {"0"}


def test_it_trains_is_pruned_saved_and_exported(tmp_path):
    torch.manual_seed(0)
    model = Net().eval()
    factorizer = SVDFactorizer(model, [{"op_names": ["conv2", "fc"], "parameters": 0.5}])
    factorizer.compress()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8, 3, 12, 12)
    before = model.fc[0].weight.detach().clone()
    F.cross_entropy(model(x), torch.arange(8)).backward()
    optimizer.step()
    assert not torch.equal(model.fc[0].weight, before)
    pruner = LevelPruner(model, [{"op_names": ["fc.*"], "sparsity": 0.5}])
    pruner.compress()
    pruner.strip()
    factorizer.export_model(str(tmp_path / "model.safetensors"))
    other = Net().eval()
    SVDFactorizer(other, factorizer.result.config_list()).compress()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    file = export_onnx(model, tmp_path / "model.onnx", x)
    assert file is not None and (tmp_path / "model.onnx").stat().st_size > 0


def test_a_layer_in_two_places_is_replaced_in_both():
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    SVDFactorizer(model, [{"rank": 2}]).compress()
    assert isinstance(model[0], nn.Sequential) and model[0] is model[2]


def test_half_precision_and_frozen_layers():
    model = nn.Sequential(nn.Linear(32, 32)).to(torch.bfloat16)
    model[0].weight.requires_grad_(False)
    SVDFactorizer(model, [{"rank": 4}]).compress()
    assert model[0][0].weight.dtype == torch.bfloat16
    assert not model[0][0].weight.requires_grad and model[0][1].bias.requires_grad


def test_what_cannot_be_done_is_refused_and_nothing_changes():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for rule, words in (
        ({}, "expected one of 'rank', 'energy' and 'parameters', received none"),
        ({"rank": 2, "energy": 0.5}, "received"),
        ({"rank": 0}, "rank"),
        ({"energy": 1.5}, "fraction"),
    ):
        with pytest.raises(ConfigError, match=words):
            SVDFactorizer(model, [rule])
    with pytest.raises(ConfigError, match="is the whole model"):
        SVDFactorizer(nn.Linear(4, 4), [{"rank": 1}])
    pruner = LevelPruner(model, [{"op_names": ["0"], "sparsity": 0.5}])
    pruner.compress()
    with pytest.raises(ConfigError, match="has a pruner or a quantizer attached"):
        SVDFactorizer(model, [{"rank": 2}])
    pruner.strip()
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    with pytest.raises(AlgorithmError, match="NaN or infinity"):
        SVDFactorizer(model, [{"rank": 2}]).compress()
    assert type(model[0]) is nn.Linear
    with pytest.raises(StageError, match="no state besides the model"):
        SVDFactorizer(model, [{"rank": 2}]).state()
    handle = model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="has hooks"):
        SVDFactorizer(model, [{"rank": 2}])
    handle.remove()


def test_keras_models_are_refused():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    with pytest.raises(UnsupportedModelError, match="works on torch models"):
        SVDFactorizer(model, [{"rank": 2}])


def test_layers_whose_weight_a_transformer_reads_in_evaluation_are_left():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(layer, nn.Linear(32, 32)).eval()
    factorizer = SVDFactorizer(model, [{"op_types": ["Linear"], "rank": 4}])
    model = factorizer.compress()
    assert list(factorizer.result.ranks) == ["1"]
    assert "reads its weight" in factorizer.result.left["0.linear1"]
    with torch.no_grad():
        assert model(torch.randn(2, 5, 32)).shape == (2, 5, 32)


class Reader(nn.Module):
    """Computes with the weight of a layer in one of the ways that people write."""

    def __init__(self):
        super().__init__()
        self.fc, self.layers = nn.Linear(32, 32), nn.ModuleList([nn.Linear(32, 32)])
        self.reset()

    def reset(self):
        nn.init.orthogonal_(self.fc.weight)


class Direct(Reader):
    def forward(self, x):
        return F.linear(self.layers[0](x), self.fc.weight)


class ByAnotherName(Reader):
    def forward(self, x):
        layer = self.fc
        return self.norm(self.layers[0](x)) @ layer.weight.T

    def norm(self, x):
        return x


class InAMethod(Reader):
    def forward(self, x):
        return self.fc(self.layers[0](x)) + self.penalty()

    def penalty(self):
        return self.fc.weight.abs().sum()


class InALoop(Reader):
    def forward(self, x):
        for layer in self.layers:
            x = F.linear(x, layer.weight)
        return self.fc(x)


@pytest.mark.parametrize("cls", [Direct, ByAnotherName, InAMethod, InALoop])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_layer_whose_parent_reads_its_weight_is_refused_by_name(cls, is_nested):
    model = nn.Sequential(cls()) if is_nested else cls()
    name, other = ("layers.0", "fc") if cls is InALoop else ("fc", "layers.0")
    prefix = "0." if is_nested else ""
    words = f"layer '{prefix}{name}' is used directly: {cls.__name__}.* reads its 'weight'"
    with pytest.raises(ConfigError, match=words):
        SVDFactorizer(model, [{"rank": 2}])
    factorizer = SVDFactorizer(model, [{"op_names": [prefix + other], "rank": 2}])
    model = factorizer.compress()
    assert model(torch.randn(3, 32)).shape == (3, 32)


def test_what_only_initialization_reads_does_not_count():
    class Plain(Reader):
        def forward(self, x):
            return self.fc(self.layers[0](x))

    factorizer = SVDFactorizer(Plain(), [{"rank": 2}])
    factorizer.compress()
    assert sorted(factorizer.result.ranks) == ["fc", "layers.0"]


class Holder(nn.Module):
    """Keeps a layer in a plain attribute too, and calls it from there."""

    def __init__(self, keep, call):
        super().__init__()
        self.fc, self.other = nn.Linear(40, 40), nn.Linear(40, 40)
        self.kept, self.call = keep(self), call

    def forward(self, x):
        return self.other(self.call(self.kept, x))

    def call_fc(self, x):
        return self.fc(x)


def block_of(layer):
    """Return a module that is not a child of the model, with a layer that is."""
    return nn.Sequential(nn.ReLU(), layer)


HOLDERS = {
    "list": (lambda m: [m.fc], lambda kept, x: kept[0](x)),
    "pairs": (lambda m: ((0, m.fc),), lambda kept, x: kept[0][1](x)),
    "dict": (lambda m: {"a": [m.fc]}, lambda kept, x: kept["a"][0](x)),
    "method": (lambda m: m.fc.forward, lambda kept, x: kept(x)),
    "partial": (lambda m: functools.partial(m.fc), lambda kept, x: kept(x)),
    "block": (lambda m: [block_of(m.fc)], lambda kept, x: kept[0](x)),
    "weight": (lambda m: [m.fc.weight], lambda kept, x: F.linear(x, kept[0])),
}


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_layer_that_a_plain_attribute_holds_is_refused_by_name(how, is_nested):
    holder = Holder(*HOLDERS[how])
    model, prefix = (nn.Sequential(holder), "0.") if is_nested else (holder, "")
    part = "'s weight" if how == "weight" else ""
    words = f"layer '{prefix}fc' would still be used .*Holder holds the layer{part} in its .*'kept'"
    for make in (SVDFactorizer.compress, SVDFactorizer.lay_out):
        with pytest.raises(ConfigError, match=words):
            make(SVDFactorizer(model, [{"rank": 2}]))
    assert type(holder.fc) is nn.Linear and type(holder.other) is nn.Linear
    factorizer = SVDFactorizer(model, [{"op_names": [f"{prefix}other"], "rank": 2}])
    factorizer.compress()
    assert list(factorizer.result.ranks) == [f"{prefix}other"]


def test_a_compiled_layer_inside_a_model_is_refused_by_name():
    model = nn.Sequential(torch.compile(nn.Linear(8, 8)))
    with pytest.raises(ConfigError, match="'0._orig_mod' would still be used"):
        SVDFactorizer(model, [{"rank": 2}])


def test_attributes_that_would_use_the_new_layers_do_not_count():
    model = Holder(lambda m: [m.call_fc, "fc", {"size": (40, 40)}], lambda kept, x: kept[0](x))
    model.itself = [model, model.children]
    factorizer = SVDFactorizer(model, [{"rank": 2}])
    factorizer.compress()
    assert list(factorizer.result.ranks) == ["fc", "other"]
    x = torch.randn(2, 40)
    assert torch.equal(model(x), model.other(model.fc(x)))
