"""Layers of torch models: counted by hand, and the model as it was."""

import copy

import pytest
import torch
from torch import nn

from lilliput.report.snapshot import Snapshot, snapshot
from lilliput.torch import BNNQuantizer, LevelPruner, QATQuantizer


class Mixed(nn.Module):
    """Layers that are counted by the counter, by formulas, and in fused kernels."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.both = nn.Bilinear(32, 32, 4)

    def forward(self, x):
        y = self.block(self.lstm(x)[0])
        return self.both(y, y)


def by_name(taken):
    return {layer.name: layer for layer in taken.layers}


@pytest.fixture
def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
    )


def test_convolutions_and_linear_layers_are_counted_for_one_example(convolutions):
    taken = snapshot(convolutions, torch.randn(3, 4, 6, 6))
    layers = by_name(taken)
    assert layers["0"].macs == 16 * 8 * 2 * 9 and layers["4"].macs == 128 * 5
    assert layers["0"].parameters == 8 * 2 * 9 + 8 and layers["0"].shape == [8, 2, 3, 3]
    assert (taken.batch, taken.macs) == (3, 16 * 8 * 2 * 9 + 128 * 5)
    assert taken.parameters == sum(p.numel() for p in convolutions.parameters())


def test_recurrent_layers_attention_and_products_are_counted():
    layers = by_name(snapshot(Mixed(), torch.randn(2, 5, 8)))
    lstm = 2 * (64 * 8 + 64 * 16) + 2 * (64 * 32 + 64 * 16)
    assert layers["lstm"].macs == 5 * lstm
    assert layers["block.self_attn"].macs == 5 * 4 * 32 * 32 + 2 * 5 * 5 * 32
    assert layers["block.linear1"].macs == 5 * 32 * 64
    assert layers["both"].macs == 5 * 4 * 32 * 32
    assert layers["block.norm1"].macs == 0


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_are_counted(cell):
    made = cell(8, 16)
    expected = made.weight_ih.numel() + made.weight_hh.numel()
    assert snapshot(made, torch.randn(3, 8)).macs == expected


def test_inputs_by_name_are_counted_as_well():
    assert (
        snapshot(nn.LSTM(3, 4, batch_first=True), {"input": torch.zeros(2, 5, 3)}).macs == 5 * 112
    )


def test_products_in_a_module_without_parameters_have_a_row_of_their_own():
    class Attend(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(nn.Linear(8, 8), Attend())
    layers = by_name(snapshot(model, torch.randn(2, 5, 8)))
    assert (layers["1"].type, layers["1"].macs, layers["1"].parameters) == ("Attend", 400, 0)


def test_a_module_that_runs_twice_counts_twice_and_is_held_once():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    taken = snapshot(model, torch.randn(2, 6))
    assert (taken.macs, taken.parameters) == (72, 42)


def test_a_tied_weight_counts_where_it_comes_first():
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10, bias=False))
    model[1].weight = model[0].weight
    taken = snapshot(model, torch.zeros(2, 3, dtype=torch.long))
    assert (taken.parameters, taken.macs) == (60, 3 * 60)


def test_masks_count_as_zeros_and_bits_are_seen(convolutions):
    x = torch.randn(2, 4, 6, 6)
    LevelPruner(convolutions, [{"op_types": ["Linear"], "sparsity": 0.75}]).compress()
    QATQuantizer(convolutions, [{"op_types": ["Linear"], "quant_bits": 4}]).compress()
    convolutions(x)
    layers = by_name(snapshot(convolutions, x))
    assert layers["4"].nonzeros == 160 + 5 and layers["4"].bits == 4
    assert layers["4"].zeros >= 0.75 and sum(layers["4"].histogram.counts) <= 160
    assert layers["0"].bits is None and layers["0"].type == "Conv2d"
    assert layers["4"].macs == 640  # masked, so still multiplied


def test_a_binary_weight_has_one_bit():
    model = BNNQuantizer(nn.Sequential(nn.Linear(4, 4)), [{"op_types": ["Linear"]}]).compress()
    assert snapshot(model).layers[0].bits == 1


def test_the_model_is_as_it_was(convolutions):
    x = torch.randn(2, 4, 6, 6)
    QATQuantizer(convolutions, [{"op_types": ["Conv2d", "Linear"]}]).compress()
    convolutions(x)
    convolutions[0].eval()
    before = copy.deepcopy(convolutions.state_dict())
    modes = [m.training for m in convolutions.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in convolutions.modules()]
    random = torch.get_rng_state()
    snapshot(convolutions, x, timing=True)
    assert all(torch.equal(x, before[k]) for k, x in convolutions.state_dict().items())
    assert [m.training for m in convolutions.modules()] == modes
    assert hooks == [
        len(m._forward_hooks) + len(m._forward_pre_hooks) for m in convolutions.modules()
    ]
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(p.grad is None for p in convolutions.parameters())


def test_a_forward_that_fails_leaves_no_hooks(convolutions):
    with pytest.raises(RuntimeError):
        snapshot(convolutions, torch.randn(2, 3, 6, 6))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in convolutions.modules())
    assert convolutions.training


def test_times_are_each_layers_own(convolutions):
    layers = snapshot(convolutions, torch.randn(2, 4, 6, 6), timing=True).layers
    assert all(layer.ms is not None and 0 < layer.ms < 1000 for layer in layers)


def test_without_inputs_nothing_runs(convolutions):
    taken = snapshot(convolutions)
    assert taken.macs is None and taken.layers[0].macs is None
    assert taken.layers[0].histogram.low < 0 < taken.layers[0].histogram.high


def test_half_precision_and_named_inputs():
    model = nn.Sequential(nn.Linear(4, 4)).bfloat16()
    taken = snapshot(model, {"input": torch.zeros(2, 4, dtype=torch.bfloat16)})
    assert taken.macs == 16 and sum(taken.layers[0].histogram.counts) == 16


def test_it_is_small_plain_data(convolutions):
    taken = snapshot(convolutions)
    text = taken.model_dump_json()
    assert Snapshot.model_validate_json(text) == taken and len(text) < 2000
