"""Taking single operators apart gives the graph that torch gets by tracing the whole program again."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _fx_passes

from lilliput.frameworks.torch.export import decompose
from lilliput.frameworks.torch.export.decompose import only_where_needed


class Cnn(nn.Module):
    """Batch norm and pooling have no ONNX form of their own, dropout and ReLU6 do."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.norm.running_mean.uniform_(-1, 1)
        self.drop, self.head = nn.Dropout(), nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.relu6(self.norm(self.conv(x)))
        return self.head(self.drop(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class Mask(nn.Module):
    """What masks of language models are made of: conversions, differences, sizes that are open."""

    def forward(self, x):
        places = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
        runs = (torch.diff(places, prepend=places[:, :1] - 1) != 1).cumsum(-1)
        seen = (places[:, :, None] >= places[:, None]) & (runs[:, :, None] == runs[:, None])
        weights = seen.to(torch.float32).to(x.dtype)
        return (weights / weights.sum(-1, keepdim=True)) @ x.reshape(x.shape[0], -1, 4)


class Several(nn.Module):
    """An operator without an ONNX form that returns two tensors."""

    def forward(self, x):
        low, high = torch.aminmax(x, dim=1, keepdim=True)
        return (x - low) / (high - low + 1)


class InPlace(nn.Module):
    def forward(self, x):
        y = torch.nn.functional.adaptive_avg_pool2d(x, 1) * 2
        return y.add_(1).relu_()


class PoolsLast(nn.Module):
    def forward(self, x):
        return nn.functional.adaptive_avg_pool2d(x * 2, 1)


class Pieces(nn.Module):
    """Returns pieces of an operator that is taken apart."""

    def forward(self, x):
        return (x * 2).chunk(2, -1)[1]


class Transposed(nn.Module):
    def forward(self, x):
        return (x * 2).mT


def exported(model, x):
    rows = torch.export.Dim.DYNAMIC
    return torch.onnx.export(
        model,
        (x,),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: rows, 1: rows},) if x.ndim == 3 else ({0: rows},),
    )


def types(program):
    """Count the kinds of nodes, but those that compute sizes: of `n + 1` or of a tensor that is that long."""
    nodes = [x for x in program.model.graph if x.outputs[0].dtype is not ir.DataType.INT64]
    return Counter(x.op_type for x in nodes)


@pytest.fixture
def answers(monkeypatch):
    """What `take_apart` returned."""
    found, original = [], decompose.take_apart

    def noted(*args):
        found.append(original(*args))
        return found[-1]

    monkeypatch.setattr(decompose, "take_apart", noted)
    return found


IMAGE, TEXT = torch.linspace(-2, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8), torch.randn(2, 5, 4)
CASES = [(Cnn, IMAGE, True), (Mask, TEXT, True), (InPlace, IMAGE, False), (PoolsLast, IMAGE, False)]
CASES += [(Pieces, TEXT, False), (Transposed, TEXT, False)]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("kind", "x", "is_taken"), CASES)
def test_the_file_is_the_one_that_torch_writes(answers, kind, x, is_taken):
    torch.manual_seed(0)
    model = kind().eval()
    expected = exported(model, x)
    with only_where_needed():
        received = exported(model, x)
    assert answers == [is_taken]
    assert types(expected) == types(received)
    for size in (2, 3):  # rows are open
        rows = torch.cat([x, x])[:size]
        session = onnxruntime.InferenceSession(received.model_proto.SerializeToString())
        (output,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
        np.testing.assert_allclose(output, model(rows).detach(), atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_an_operator_with_several_results():
    model = Several().eval()
    program = torch.export.export(model, (TEXT,))
    before = [node.target for node in program.graph.nodes if node.op == "call_function"]
    aten = torch.ops.aten
    table = {aten.aminmax.default: torch._decomp.decomposition_table[aten.aminmax.default]}
    known = {x for x in before if x is not aten.aminmax.default} | {aten.amin.default}
    assert not decompose.take_apart(program, known, table)  # amax has no form
    assert [x.target for x in program.graph.nodes if x.op == "call_function"] == before
    assert decompose.take_apart(program, known | {aten.amax.default}, table)
    assert aten.aminmax.default not in {node.target for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(TEXT), model(TEXT))


def test_torch_is_as_before_also_after_an_error():
    before = _fx_passes.decompose_with_registry
    with pytest.raises(ZeroDivisionError), only_where_needed():
        assert _fx_passes.decompose_with_registry is not before
        raise ZeroDivisionError
    assert _fx_passes.decompose_with_registry is before
