import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.discover import discover
from lilliput.torch import LevelPruner, NaiveQuantizer


def listing(model):
    return [(x.name, x.type, x.weight_name, x.bias_name) for x in discover(model)]


def test_a_plain_network_is_listed_in_order():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(2, 2, bias=False)
    )
    assert listing(model) == [
        ("0", "Conv2d", "weight", "bias"),
        ("1", "BatchNorm2d", "weight", "bias"),
        ("2", "ReLU", None, None),
        ("3", "Linear", "weight", None),
    ]


def test_attention_and_lstm_weights_are_found_with_their_biases():
    model = nn.ModuleDict({"att": nn.MultiheadAttention(4, 2), "lstm": nn.LSTM(3, 2)})
    assert listing(model) == [
        ("att", "MultiheadAttention", "in_proj_weight", "in_proj_bias"),
        ("att.out_proj", "NonDynamicallyQuantizableLinear", "weight", "bias"),
        ("lstm.weight_ih_l0", "LSTM", "weight_ih_l0", "bias_ih_l0"),
        ("lstm.weight_hh_l0", "LSTM", "weight_hh_l0", "bias_hh_l0"),
    ]
    assert "Linear" in discover(model)[1].types
    assert [x.is_bypassed for x in discover(model)] == [False, True, False, False]


def test_attention_with_separate_projections_has_three_weights():
    names = [
        x.name for x in discover(nn.ModuleDict({"a": nn.MultiheadAttention(4, 2, kdim=3, vdim=5)}))
    ]
    assert names == ["a.q_proj_weight", "a.k_proj_weight", "a.v_proj_weight", "a.out_proj"]


def test_a_layer_with_several_weights_is_selected_by_module_or_by_weight():
    def chosen(name):
        model = nn.ModuleDict({"lstm": nn.LSTM(3, 2)})
        pruner = LevelPruner(model, [{"op_names": [name], "sparsity": 0.5}])
        return [w.name for w in pruner.get_modules_wrapper()]

    assert chosen("lstm") == ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert chosen("lstm.weight_hh_l0") == ["lstm.weight_hh_l0"]


def test_a_custom_module_offers_its_matrices():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(2, 2))
            self.scale = nn.Parameter(torch.ones(2))

    assert listing(nn.Sequential(Gate())) == [("0", "Gate", "kernel", None)]


def test_a_bare_layer_is_named_after_its_weight():
    assert listing(nn.Linear(2, 2)) == [("weight", "Linear", "weight", "bias")]


def test_prefixes_of_wrapping_modules_are_left_out_of_names():
    model = nn.Sequential(nn.Linear(2, 2))
    assert listing(nn.DataParallel(model)) == listing(model)
    assert listing(torch.compile(model)) == listing(model)


def test_layers_already_compressed_are_listed_as_before():
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))
    before = listing(model)
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    assert listing(model) == before


def test_lazy_layers_are_refused_with_the_fix():
    with pytest.raises(UnsupportedModelError, match="run one forward pass"):
        discover(nn.Sequential(nn.LazyLinear(2)))


def test_integer_and_empty_weights_are_left_out():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)

    assert listing(nn.Sequential(Table(), nn.Linear(2, 2))) == [("1", "Linear", "weight", "bias")]


def test_a_module_used_twice_is_one_layer_under_both_names():
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"first": shared, "second": shared})
    (layer,) = discover(model)
    assert layer.name == "first" and layer.names == {"first", "second"}
    pruner = LevelPruner(model, [{"op_names": ["second"], "sparsity": 0.5}])
    assert "first (= second)" in pruner.explain()


class Aliased(nn.Linear):
    """Computes with a second name of its weight."""

    def __init__(self, *args):
        super().__init__(*args)
        self.alias = self.weight

    def forward(self, x):
        return nn.functional.linear(x, self.alias, self.bias)


class Borrower(nn.Module):
    """Has a weight of its own, and that of another layer under a name of its own."""

    def __init__(self, layer):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.borrowed = layer.weight

    def forward(self, x):
        return x @ self.weight @ self.borrowed


def aliased():
    return nn.Sequential(Aliased(8, 8)), lambda model: model[0].alias


def borrowed():
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, Borrower(layer)), lambda model: model[1].borrowed


@pytest.mark.parametrize("build", [aliased, borrowed])
def test_a_second_name_of_a_weight_is_masked(build):
    torch.manual_seed(0)
    model, second = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(4, 8)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
    pruner = LevelPruner(model, [{"op_names": ["0"], "sparsity": 0.5}])
    pruner.compress()
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        assert int((second(model) == 0).sum()) == 32
    before = model(x)
    pruner.strip()
    assert torch.equal(model(x), before) and isinstance(model[0], nn.Linear)
    assert second(model) is model[0].weight


@pytest.mark.parametrize("build", [aliased, borrowed])
def test_a_second_name_of_a_weight_is_quantized(build):
    torch.manual_seed(0)
    model, second = build()
    quantizer = NaiveQuantizer(model, [{"op_names": ["0"], "quant_bits": 2}])
    quantizer.compress()
    assert len(second(model).unique()) <= 4
    quantizer.strip()
    assert len(second(model).unique()) > 4
