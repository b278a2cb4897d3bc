"""Tables of integers: rows are looked up and then dequantized, and a tied head shares its weights."""

import functools

import numpy as np
import onnx
import pytest
import torch
from fixed_quantizer import constants, execute, export, operators
from torch import nn

from lilliput.report.measure import measure
from lilliput.torch import PTQQuantizer

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

ROWS, WIDTH = 96, 48
GROUPS = {"granularity": "per_group", "group_size": 16}
FOUR = {"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_group", "group_size": 32}


def lookup(settings, ids=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.LayerNorm(WIDTH))
    with torch.no_grad():
        model[0].weight *= torch.linspace(0.1, 3, ROWS)[:, None]
    quantizer = PTQQuantizer(model, [{"op_types": ["Embedding"], **settings}])
    quantizer.compress()
    return quantizer, torch.randint(0, ROWS, (2, 5)) if ids is None else ids


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"quant_bits": 8}, "INT8"),
        ({"quant_bits": 8, "granularity": "per_tensor"}, "INT8"),
        ({"quant_bits": 8, "quant_scheme": "affine", "quant_dtype": "uint"}, "UINT8"),
        ({"quant_bits": 8, **GROUPS}, "UINT8"),
        ({"quant_bits": 8, **GROUPS, "quant_scheme": "symmetric"}, "INT8"),
        ({"quant_bits": 12}, "INT16"),
    ],
)
def test_the_rows_of_a_table_are_looked_up_as_integers(tmp_path, settings, kind):
    quantizer, ids = lookup(settings)
    result, graph = export(quantizer, tmp_path, ids)
    (reader,) = (node for node in graph.node if "0.weight_quantized" in node.input)
    assert reader.op_type == "Gather"
    assert constants(graph)["0.weight_quantized"][0] == kind
    assert max(np.prod(x.dims) for x in graph.initializer if x.data_type == 1) < ROWS * WIDTH
    expected = quantizer.bound_model(ids).detach().numpy()
    assert np.allclose(execute(result.path, ids.numpy())[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        GROUPS,
        {},
        *(slow(x) for x in ({"granularity": "per_tensor"}, FOUR)),
    ],
)
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_four_bits_are_looked_up_packed(tmp_path, settings, scheme):
    quantizer, ids = lookup({**settings, "quant_bits": 4, "quant_scheme": scheme})
    result, graph = export(quantizer, tmp_path, ids)
    assert operators(graph)[0] == "GatherBlockQuantized"
    table = next(x for x in graph.initializer if x.name == "0.weight_quantized")
    assert len(table.raw_data) == ROWS * WIDTH // 2
    expected = quantizer.bound_model(ids).detach().numpy()
    assert np.allclose(execute(result.path, ids.numpy())[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor(3),
        *(slow(x) for x in (torch.zeros(1, 1).long(), torch.arange(4))),
        torch.arange(8).view(2, 2, 2),
    ],
)
def test_indices_of_any_rank_are_looked_up(tmp_path, ids):
    for bits in (8, 4):
        quantizer, _ = lookup({"quant_bits": bits})
        result, graph = export(quantizer, tmp_path, ids, dynamic_batch=False)
        assert operators(graph)[0] != "DequantizeLinear"
        expected = quantizer.bound_model(ids).detach().numpy()
        assert np.allclose(execute(result.path, ids.numpy())[0], expected, atol=1e-5)


def test_other_targets_keep_standard_operators(tmp_path):
    quantizer, ids = lookup({"quant_bits": 4, **GROUPS})
    for target in ("generic", "openvino"):
        _, graph = export(quantizer, tmp_path, ids, target)
        assert operators(graph)[:2] == ["DequantizeLinear", "Gather"]
        assert {node.domain for node in graph.node} == {""}


def test_a_table_that_no_kernel_looks_up_is_noted(tmp_path):
    quantizer, ids = lookup({"quant_bits": 4, "granularity": "per_group", "group_size": 12})
    result, graph = export(quantizer, tmp_path, ids)
    assert operators(graph)[:2] == ["DequantizeLinear", "Gather"]
    assert any(note.startswith("0.weight: the whole table") for note in result.notes)


class Tied(nn.Module):
    def __init__(self, rows=500, width=64):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(rows, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, rows, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.hidden(self.table(ids)).relu())


@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_a_tied_head_and_its_table_are_one_constant(tmp_path, scheme):
    model, ids = Tied(), torch.randint(0, 500, (2, 8))
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], **FOUR, "quant_scheme": scheme}])
    quantizer.compress()
    result, graph = export(quantizer, tmp_path, ids)
    assert [layer.kernel for layer in result.layers] == ["MatMulNBits", "MatMulNBits"]
    assert [layer.name for layer in result.layers] == ["hidden", "head"]
    packed = [x for x in graph.initializer if "INT4" in onnx.TensorProto.DataType.Name(x.data_type)]
    tables = [x for x in packed if np.prod(x.dims) == 500 * 64]
    assert len(tables) == 1 and result.bytes < 500 * 64 * 1.5
    assert result.runtimes["onnxruntime_unoptimized"].max_error < 1e-5
    expected = model(ids).detach().numpy()
    assert np.allclose(execute(result.path, ids.numpy(), optimized=False)[0], expected, atol=1e-5)


def test_an_eight_bit_tied_head_shares_its_weights_too(tmp_path):
    model, ids = Tied(), torch.randint(0, 500, (2, 8))
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], "quant_types": ["weight"]}])
    quantizer.compress()
    result, graph = export(quantizer, tmp_path, ids)
    readers = [
        node.op_type for node in graph.node if "table.weight_transposed_quantized" in node.input
    ]
    assert sorted(readers) == ["DequantizeLinear", "Transpose"]
    assert [layer.kernel for layer in result.layers] == ["MatMulNBits", "MatMulNBits"]
    assert result.bytes < 500 * 64 * 1.5
    expected = model(ids).detach().numpy()
    assert np.allclose(execute(result.path, ids.numpy(), optimized=False)[0], expected, atol=1e-5)


@pytest.mark.parametrize("rules", [FOUR, {"quant_types": ["weight"], "quant_bits": 8}])
def test_a_receipt_counts_tied_weights_once_and_no_scales(tmp_path, rules):
    model, ids = Tied(), torch.randint(0, 500, (2, 8))
    count = sum(parameter.numel() for parameter in model.parameters())
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], **rules}])
    quantizer.compress()
    result, _ = export(quantizer, tmp_path, ids)
    found = measure(result.path, ids)
    assert found.parameters == count
    held = (model.head.weight, model.hidden.weight, model.hidden.bias)
    assert found.nonzeros == sum(int(x.count_nonzero()) for x in held)
