"""The masked and the cut model are compared in double precision, and with noise on their weights."""

import numpy as np
import torch
from torch import nn

from lilliput.frameworks.torch import build, shrink
from lilliput.frameworks.torch.cutting import clear_, cut_all
from lilliput.frameworks.torch.precision import keep, load_in_parts
from lilliput.frameworks.torch.verify import Noise, make_references
from lilliput.graph.cuts import Cut
from lilliput.torch import L1NormPruner, speedup

RULES = [{"op_types": ["default"], "sparsity": 0.5}]


def pruned(*layers):
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    return model, x


def test_noise_of_a_cut_weight_is_what_is_left_of_the_noise_of_the_masked_one():
    model = nn.Sequential(nn.Linear(900, 700), nn.Conv2d(8, 12, 3, groups=2), nn.BatchNorm1d(5))
    rng = np.random.default_rng(0)
    cuts = [
        Cut("0.weight", 0, rng.permutation(700)[:300]),
        Cut("0.weight", 1, np.sort(rng.permutation(900)[:500])),
        Cut("0.bias", 0, np.arange(0, 700, 3)),
        Cut("1.weight", 1, np.array([[0, 2], [1, 3]])),
        Cut("1.weight", 0, np.arange(1, 12, 2)),
    ]
    noise = Noise(model, cuts)
    for name, parameter in model.named_parameters():
        own = [cut for cut in cuts if cut.tensor == name]
        whole = noise.add(name, parameter.detach().double())
        assert not torch.equal(whole, parameter.detach().double())
        received = noise.add_cut(name, cut_all(parameter.detach().double(), own))
        torch.testing.assert_close(received, cut_all(whole, own), rtol=1e-14, atol=1e-15)
        cleared = parameter.detach().double()
        for cut in own:
            clear_(cut, cleared)
        gone = cleared == 0
        assert not whole[gone & (parameter != 0)].any()


def test_noise_of_rows_is_that_of_the_weight():
    model = nn.Sequential(nn.Linear(900, 700))
    cuts = [Cut("0.weight", 0, np.arange(0, 700, 2)), Cut("0.weight", 1, np.arange(450))]
    noise = Noise(model, cuts)
    weight = model[0].weight.detach()
    small = cut_all(weight, cuts)
    for add, values in ((noise.add, weight), (noise.add_cut, small)):
        whole = add("0.weight", values.clone())
        rows = [add("0.weight", part.clone(), 100 * i) for i, part in enumerate(values.split(100))]
        assert torch.equal(torch.cat(rows), whole)


def test_a_large_linear_layer_runs_by_rows_in_double_precision():
    layer = nn.Linear(1000, 600)
    model = nn.Sequential(nn.Linear(4, 1000), layer)
    x = torch.randn(3, 4, dtype=torch.float64)
    seen = []

    def load(name, tensor, first):
        seen.append((name, tuple(tensor.shape), first))
        return keep(name, tensor)

    twin = load_in_parts(nn.Sequential(*model), load)
    received = twin(x)
    del layer.forward
    assert [row for name, _, row in seen if name == "1.weight"] == [0, 250, 500]
    assert layer.weight.dtype == torch.float32
    torch.testing.assert_close(received, model.double()(x), rtol=1e-12, atol=1e-12)


def test_own_weights_and_noise_are_checked_in_double_precision():
    model, x = pruned(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    for reference in make_references(model, x, False, Noise(model, ()).add):
        assert reference.outputs[0][0].dtype == torch.float64
        assert reference.tolerance == 1e-10


def test_the_error_of_a_result_is_that_in_double_precision():
    model, x = pruned(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    assert speedup(model, x).error < 1e-12


class Folds(nn.Module):
    """Its code has sizes in it, so that it can be cut only as a graph."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        y = self.a(x).relu()
        return self.b(y.reshape(x.shape[0], 8))


def test_a_whole_graph_is_captured_once(monkeypatch):
    calls = []
    original = build.capture_whole
    monkeypatch.setattr(build, "capture_whole", lambda *args: calls.append(1) or original(*args))
    model, x = Folds().eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    with torch.no_grad():
        expected = model(x)
    result = speedup(model, x)
    assert result.kind == "graph"
    assert len(calls) == 1
    torch.testing.assert_close(result.model(x), expected)


class Remembers(nn.Module):
    """Has a width that nothing computes with."""

    def __init__(self):
        super().__init__()
        self.num_features = 8
        self.a, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.a(x).relu())


def test_widths_are_checked_along_with_the_cut(monkeypatch):
    tried = []
    original = shrink._Work._try
    monkeypatch.setattr(
        shrink._Work, "_try", lambda self, *args: tried.append(1) or original(self, *args)
    )
    model, x = Remembers().eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    result = speedup(model, x)
    assert result.remembered == {"num_features": (8, 4)}
    assert model.num_features == 4
    assert len(tried) == 1
