"""nn.MultiheadAttention in a file: which of its products run on integers, and as simulated."""

import pytest
import torch
from torch import nn

from lilliput.torch import PTQQuantizer, export_onnx, open_file

FLOAT = {"MatMul", "FusedMatMul"}
INTEGER = {"QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}


def exported(path, observer, types=("Linear", "MultiheadAttention"), is_batch_first=True, **keys):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=is_batch_first).eval()
    x = torch.randn(2, 16, 64)
    rules = [{"op_types": list(types), "observer": observer, **keys}]
    quantizer = PTQQuantizer(layer, rules, example_inputs=x)
    quantizer.compress()
    if observer != "dynamic":
        quantizer.calibrate([torch.randn(2, 16, 64) for _ in range(4)], progress=False)
    return layer, x, export_onnx(quantizer, path, x)


def kernels(result):
    """Return the kernels: in-projection, queries × keys, × values, out-projection, two layers."""
    return [layer.kernel for layer in result.layers]


@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize("observer", ["mse", "dynamic"])
def test_projections_of_attention_run_on_integers(tmp_path, observer, is_batch_first):
    model, x, result = exported(tmp_path / "m.onnx", observer, is_batch_first=is_batch_first)
    inward, scores, values, outward, first, second = kernels(result)
    assert {inward, first, second} <= INTEGER
    assert {scores, values} <= FLOAT
    assert outward == "MatMulNBits"  # nobody calls it: its input has no quantizer
    inputs = {row["layer"] for row in result.compare_layers() if row["tensor"] == "input"}
    assert inputs == {"self_attn", "linear1", "linear2"}
    assert result.runtimes["onnxruntime_unoptimized"].local_lsb <= 1
    assert result.runtimes["onnxruntime"].local_lsb < 1.1  # MatMulNBits rounds its input as well
    with torch.no_grad():
        wanted = model(x)
    torch.testing.assert_close(open_file(tmp_path / "m.onnx")(x), wanted, atol=0.05, rtol=0)


def test_a_rule_for_linear_layers_leaves_the_in_projection_in_float(tmp_path):
    _, _, result = exported(tmp_path / "m.onnx", "mse", ["Linear"])
    inward, _, _, outward, first, second = kernels(result)
    assert inward in FLOAT
    assert outward == "MatMulNBits"
    assert {first, second} <= INTEGER


def test_four_bits_in_groups_of_an_in_projection_are_multiplied_in_eight(tmp_path):
    keys = {"granularity": {"weight": "per_group"}, "group_size": 32}
    bits = {"quant_bits": {"weight": 4, "input": 8}}
    _, _, result = exported(tmp_path / "m.onnx", "dynamic", ["MultiheadAttention"], **keys, **bits)
    assert kernels(result)[0] in INTEGER
    assert result.layers[0].weight_dtype == "uint4"
