"""What each target makes of the same model, and what it says."""

import pytest
import torch
from fixed_quantizer import constants, export, operators, quantized, rule
from torch import nn

from lilliput.errors import ExportError


def test_missing_output_is_noted_with_its_cost(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid()), torch.randn(2, 3, 6, 6)
    quantizer = quantized(model, x, [rule(["weight", "input"], op_types=["Conv2d"])])
    result, _ = export(quantizer, tmp_path, x)
    assert result.layers[0].reason == "its output is not quantized"
    assert result.layers[0].kernel in ("Conv", "FusedConv")
    assert "0.94" in result.notes[0] and "'output' to quant_types" in result.notes[0]


def test_weights_alone_are_noted(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    result, _ = export(quantized(model, x, [rule(["weight"])]), tmp_path, x)
    assert result.layers[0].reason == "its input is not quantized"
    assert "only the weight is quantized" in result.notes[0]


def test_eight_bit_weights_alone_of_a_linear_layer_are_unpacked_in_the_kernel(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU()), torch.randn(2, 64)
    result, graph = export(
        quantized(model, x, [rule(["weight"], op_types=["Linear"])]), tmp_path, x
    )
    assert "Gemm" not in operators(graph)
    assert result.layers[0].kernel == "MatMulNBits"
    assert "single rows" in result.notes[0]


@pytest.mark.parametrize(("target", "kind"), [("onnxruntime", "INT8"), ("generic", "INT4")])
def test_four_bit_weights_with_activations(tmp_path, target, kind):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), torch.randn(2, 3, 6, 6)
    quantizer = quantized(model, x, [rule(weight=4)], powers=True)
    result, graph = export(quantizer, tmp_path, x, target)
    kinds = {
        held for name, (held, _) in constants(graph).items() if "weight" in name and "quant" in name
    }
    assert kinds == {kind}
    assert result.layers[0].integer == (target == "onnxruntime")
    assert all(found.max_error == 0 for found in result.runtimes.values())


def test_ragged_groups_are_refused_for_openvino(tmp_path):
    model, x = nn.Sequential(nn.Linear(80, 8)), torch.randn(2, 80)
    quantizer = quantized(model, x, [rule(["weight"], weight=4)], granularity="per_group")
    with pytest.raises(
        ExportError, match="0.weight: OpenVINO cannot split 80 weights into groups of 32"
    ):
        export(quantizer, tmp_path, x, "openvino")
    assert list(tmp_path.iterdir()) == []


def test_linear_layers_on_sequences_share_their_rows(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 6))
    x = torch.randn(2, 5, 12)
    rules = [
        rule(["weight", "input"], op_names=["0"]),
        rule(["output"], op_names=["1"]),
        rule(op_names=["2"]),
    ]
    quantizer = quantized(model, x, rules)
    result, graph = export(quantizer, tmp_path, x)
    assert operators(graph).count("Reshape") == 2
    assert [layer.kernel for layer in result.layers] == ["QGemm", "QGemm"]
    assert result.runtimes["onnxruntime"].lsb <= 1.001
    assert all(row["sqnr"] > 40 for row in result.compare_layers())
    _, plain = export(quantizer, tmp_path, x, "generic")
    assert operators(plain).count("MatMul") == 2


def test_attention_is_exported_with_its_costs(tmp_path):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    x = torch.randn(2, 5, 16)
    quantizer = quantized(
        model,
        x,
        [rule(op_names=["linear1", "linear2"]), rule(["weight"], op_types=["MultiheadAttention"])],
    )
    result, _ = export(quantizer, tmp_path, x)
    assert all(layer.macs for layer in result.layers)
    names = [layer.name for layer in result.layers if layer.integer]
    assert {"linear1", "linear2"} <= set(names)
    assert (
        sum(layer.macs for layer in result.layers)
        == 5 * 16 * 48 + 2 * 5 * 5 * 16 + 5 * 256 + 2 * 5 * 512
    )
