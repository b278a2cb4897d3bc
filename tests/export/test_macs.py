"""Every operator of a file that multiplies is counted, and counted right."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

from lilliput.export import export_onnx
from lilliput.frameworks.torch.measure import count_macs as count_in_torch
from lilliput.graph.onnx_macs import MACS, count_macs
from lilliput.report.measure import measure


class Everything(nn.Module):
    """A convolution, a transposed one, an einsum with a weight, attention, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv1d(6, 8, 3, groups=2), nn.ConvTranspose1d(8, 4, 2, stride=2)
        self.table, self.linear = nn.Parameter(torch.randn(4, 2, 8)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.conv(x)).transpose(1, 2)
        heads = torch.einsum("btc,chd->bhtd", x, self.table)
        seen = functional.scaled_dot_product_attention(heads, heads, heads)
        return self.linear(seen.mean(1))


@pytest.mark.parametrize("opset", [21, 23])
def test_a_file_has_as_many_multiplications_as_the_model(tmp_path: Path, opset: int) -> None:
    model, x = Everything().eval(), torch.randn(3, 6, 10)
    result = export_onnx(model, tmp_path / "model.onnx", x, opset=opset)
    expected = count_in_torch(model, x) // 3
    assert sum(layer.macs or 0 for layer in result.layers) == expected
    assert measure(result.path, x, runs=0).macs == expected


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->bik", "...i,i->...", "ij,jk,kl->il"])
def test_an_einsum_multiplies_each_combination_of_indices_once(equation: str) -> None:
    sizes = dict(zip("bijkl", (2, 3, 4, 5, 6), strict=True))
    terms = equation.split("->")[0].split(",")
    shapes = [tuple(sizes[x] for x in term.replace("...", "b")) for term in terms]
    if equation == "ij,jk,kl->il":
        expected = 3 * 4 * 5 + 3 * 5 * 6
    else:
        expected = prod(sizes[x] for x in set("".join(terms).replace("...", "b")))
    assert count_macs("Einsum", shapes, [None], {"equation": equation}) == expected


def test_files_of_other_tools_are_counted(tmp_path: Path) -> None:
    """A QLinearMatMul as ONNX Runtime's quantizer writes it with QOperator."""
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1])
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [0])
    weight = onnx.numpy_helper.from_array(np.ones((8, 3), np.uint8), "weight")
    inputs = ["x", "scale", "zero", "weight", "scale", "zero", "scale", "zero"]
    graph = helper.make_graph(
        [helper.make_node("QLinearMatMul", inputs, ["y"], name="product")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["batch", 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, ["batch", 5, 3])],
        [scale, zero, weight],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "q.onnx")
    assert measure(tmp_path / "q.onnx", np.ones((4, 5, 8), np.uint8), runs=0).macs == 5 * 8 * 3


def test_attention_counts_both_products() -> None:
    query, key, value = (2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 12, 8)
    expected = 2 * 4 * 10 * 12 * (16 + 8)
    assert count_macs("Attention", [query, key, value], [None]) == expected
    flat = [(2, 10, 64), (2, 12, 64), (2, 12, 32)]
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    assert count_macs("Attention", flat, [None], heads) == expected
    assert MACS.keys() >= {"Conv", "Gemm", "MatMul", "ConvTranspose", "Einsum", "MatMulNBits"}
