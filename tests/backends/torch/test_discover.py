import pytest
import torch
from torch import nn

from lilliput.backends.torch.discover import discover
from lilliput.errors import UnsupportedModelError
from lilliput.torch import LevelPruner


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
        return [w.name for w in pruner.modules_wrapper]

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
