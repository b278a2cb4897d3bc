"""Dynamic quantization of inputs, in the file: integer kernels that compute what is simulated."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lilliput.torch import PTQQuantizer, export_onnx, open_file, quantization_report

RULES = [{"op_types": ["Linear"], "observer": "dynamic"}]
KERNELS = {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}


class Block(nn.Module):
    """Two layers that read one tensor, and one that reads its own."""

    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(32), nn.Linear(32, 48), nn.Linear(32, 48)
        self.out = nn.Linear(48, 16, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return self.out(torch.relu(self.a(y)) * self.b(y))


def quantized(example, model=None):
    torch.manual_seed(0)
    model = Block().eval() if model is None else model
    quantizer = PTQQuantizer(model, RULES, example_inputs=example)
    quantizer.compress()
    return model, quantizer


@pytest.mark.parametrize("shape", [(3, 5, 32), (6, 32)], ids=["sequences", "rows"])
def test_dynamic_inputs_run_on_integers_as_simulated(tmp_path, shape):
    model, quantizer = quantized(example := torch.randn(shape))
    result = export_onnx(quantizer, tmp_path / "m.onnx", example)
    assert {layer.kernel for layer in result.layers} <= KERNELS
    assert result.integer_share == 1.0
    assert result.runtimes["onnxruntime"].local_lsb <= 1.01
    ops = [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]
    assert ops.count("DynamicQuantizeLinear") == 2  # one for a and b together
    file = open_file(tmp_path / "m.onnx")
    for factor in (1.0, 40.0):  # nothing is calibrated: any range will do
        x = factor * torch.randn(shape) + 1
        with torch.no_grad():
            wanted = model(x).numpy()
        error = np.abs(file(x).numpy() - wanted).max()
        assert error < 0.03 * np.abs(wanted).max()


def test_each_dynamic_tensor_is_compared(tmp_path):
    _, quantizer = quantized(example := torch.randn(2, 5, 32))
    result = export_onnx(quantizer, tmp_path / "m.onnx", example)
    rows = result.compare_layers()
    assert [(row["layer"], row["tensor"]) for row in rows] == [("a", "input"), ("out", "input")]
    assert max(row["lsb"] for row in rows) <= 1.01
    report = quantization_report(quantizer, [example])
    assert all(x.clipped is None for x in report.rows if x.target == "input")


def test_other_targets_get_the_operators_of_onnx(tmp_path):
    _, quantizer = quantized(example := torch.randn(2, 5, 32))
    result = export_onnx(quantizer, tmp_path / "m.onnx", example, target="generic")
    assert result.runtimes["onnxruntime_unoptimized"].sqnr > 30
    domains = {node.domain for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert domains == {""}


def test_weights_that_would_saturate_are_made_coarser(tmp_path):
    model = nn.Sequential(nn.Linear(64, 8, bias=False)).eval()
    model[0].weight.data.fill_(0.5)
    model, quantizer = quantized(example := torch.rand(300, 64), model)
    result = export_onnx(quantizer, tmp_path / "m.onnx", example, assume_vnni=False)
    assert [row.is_changed for row in result.guarded] == [True]
    with torch.no_grad():
        wanted = model(example).numpy()
    np.testing.assert_allclose(open_file(tmp_path / "m.onnx")(example), wanted, rtol=1e-3)
