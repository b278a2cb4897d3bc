"""Weights that are stored in four bits and multiplied in eight: small, tied, and as simulated."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.torch import PTQQuantizer, export_onnx, open_file

GROUPS = {"quant_bits": {"weight": 4, "input": 8}, "granularity": {"weight": "per_group"}}
RULES = [{"op_types": ["Linear"], **GROUPS, "group_size": 16, "observer": "dynamic"}]
KERNELS = {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}


class Tied(nn.Module):
    """A table, a layer, and a head that multiplies by the table."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(48, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.relu(self.layer(self.table(ids))))


@pytest.fixture
def tied():
    torch.manual_seed(0)
    model = Tied().eval()
    quantizer = PTQQuantizer(model, RULES)
    quantizer.compress()
    return model, quantizer


def rounded_twice(weight, size=16):
    """Return a weight on 16 levels per group, then on 127 levels per row, in NumPy."""
    parts = weight.reshape(len(weight), -1, size)
    low, high = (f(parts, axis=2, keepdims=True) for f in (np.min, np.max))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = (high - low) / np.float32(15)
    zero = np.rint(-low / scale)
    groups = ((np.clip(np.rint(parts / scale) + zero, 0, 15) - zero) * scale).reshape(weight.shape)
    columns = np.abs(groups).max(1, keepdims=True) / np.float32(63)
    return np.rint(groups / columns) * columns


def test_weights_are_rounded_to_groups_and_then_to_outputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8, bias=False)).eval()
    weight = model[0].weight.detach().clone()
    PTQQuantizer(model, RULES).compress()
    np.testing.assert_allclose(model[0].weight.detach(), rounded_twice(weight.numpy()), atol=1e-6)


def test_four_bits_are_stored_once_and_multiplied_as_simulated(tied, tmp_path):
    model, quantizer = tied
    ids = torch.arange(24).reshape(3, 8)
    result = export_onnx(quantizer, tmp_path / "m.onnx", ids)
    assert {layer.kernel for layer in result.layers} <= KERNELS
    assert {layer.weight_dtype for layer in result.layers} == {"uint4"}
    assert result.runtimes["onnxruntime"].sqnr > 40
    constants = onnx.load(tmp_path / "m.onnx").graph.initializer
    large = {x.name: x.data_type for x in constants if np.prod(x.dims) >= 1024}
    assert sorted(large.values()) == [onnx.TensorProto.UINT4] * 2, large
    others = torch.arange(10).reshape(1, 10) + 30
    with torch.no_grad():
        wanted = model(others).numpy()
    error = np.abs(open_file(tmp_path / "m.onnx")(others).numpy() - wanted).max()
    assert error < 0.02 * np.abs(wanted).max()


def test_wider_groups_with_dynamic_inputs_are_refused():
    rule = {**RULES[0], "quant_bits": 8}
    with pytest.raises(ConfigError, match="weights per group of 4 bits or less"):
        PTQQuantizer(nn.Linear(32, 4), [rule])
