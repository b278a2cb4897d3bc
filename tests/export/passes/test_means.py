"""Means over height and width, one axis at a time."""

import numpy as np
import onnx
import pytest
import torch
from fixed_quantizer import execute, export, operators, quantized, rule
from torch import nn

from lilliput.torch import PTQQuantizer, export_onnx


class Excite(nn.Module):
    """Convolutions with a squeeze-and-excitation gate between them, as mobile networks have them."""

    def __init__(self, activation, gate):
        super().__init__()
        self.first, self.activation = nn.Conv2d(3, 8, 3, padding=1), activation
        self.squeeze, self.excite, self.gate = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), gate
        self.last, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x):
        x = self.activation(self.first(x))
        pooled = nn.functional.adaptive_avg_pool2d(x, 1)
        x = x * self.gate(self.excite(self.squeeze(pooled).relu()))
        return self.head(self.activation(self.last(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("activation", "gate"),
    [(nn.Hardswish(), nn.Hardsigmoid()), (nn.SiLU(), nn.Sigmoid()), (nn.ReLU6(), nn.Hardsigmoid())],
    ids=["hardswish", "silu", "relu6"],
)
def test_gated_networks_run_on_integers_with_means_along_one_axis(activation, gate, tmp_path):
    torch.manual_seed(0)
    model, data = Excite(activation, gate).eval(), torch.randn(32, 3, 9, 7)
    with torch.no_grad():
        expected = model(data).numpy()
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}], example_inputs=data[:2])
    quantizer.compress()
    quantizer.calibrate(data.split(8))
    result = export_onnx(quantizer, tmp_path / "net.onnx", data[:2])
    assert result.integer_share == 1
    means = [node for node in onnx.load(result.path).graph.node if node.op_type == "ReduceMean"]
    assert len(means) == 3  # two in the gate, one at the end
    (received,) = execute(result.path, data)
    assert 10 * np.log10((expected**2).sum() / ((expected - received) ** 2).sum()) > 25


def test_other_means_stay_as_they_are(tmp_path):
    class Means(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            x = self.conv(x)
            return x.mean((2, 3)), x.mean((1, 3)), x.mean((-1, -2), keepdim=True), x.mean()

    model, x = Means().eval(), torch.randn(2, 3, 6, 8)
    with torch.no_grad():
        expected = model(x)
    quantizer = quantized(model, x, [rule(op_types=["Conv2d"])])
    _, graph = export(quantizer, tmp_path, x, dynamic_shapes=False)
    assert operators(graph).count("ReduceMean") == 6
    with torch.no_grad():
        simulated = model(x)
    received_all = execute(tmp_path / "model.onnx", x)
    for wanted, received, near in zip(simulated, received_all, expected, strict=True):
        assert received.shape == near.shape
        np.testing.assert_allclose(received, wanted.numpy(), atol=1e-5)
