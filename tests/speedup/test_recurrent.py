"""Recurrent layers and cells: hidden units go exactly, and everybody counts the same."""

import copy

import pytest
import torch
from torch import nn

from lilliput.report.measure import measure
from lilliput.report.snapshot import snapshot
from lilliput.torch import L1NormPruner, preflight, speedup


class Loop(nn.Module):
    """A cell that a Python loop calls, as streaming models do."""

    def __init__(self, make):
        super().__init__()
        self.front, self.cell, self.head = nn.Linear(3, 6), make(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        state = None
        for step in self.front(x).relu().unbind(1):
            state = self.cell(step, state)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(hidden.relu())


class Layer(nn.Module):
    """A recurrent layer, and a linear one that reads its last output."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        width = rnn.proj_size or rnn.hidden_size
        self.head = nn.Linear(width * (2 if rnn.bidirectional else 1), 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Streaming(nn.Module):
    """A cell whose state the caller keeps."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden, memory = self.cell(x)
        return self.head(hidden), hidden, memory


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_units_of_cells_are_cut_exactly(make):
    torch.manual_seed(0)
    model, x = Loop(make), torch.randn(5, 4, 3)
    rules = [{"op_types": ["RNNCellBase"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    masked = copy.deepcopy(model).eval()(x)
    speedup(model, x)
    assert model.cell.hidden_size == 4
    assert model.cell.weight_hh.shape[1] == 4 and model.head.in_features == 4
    torch.testing.assert_close(model.eval()(x), masked, rtol=0, atol=1e-6)


def test_a_cell_whose_state_is_returned_says_that_this_is_why_its_units_stay():
    reasons = {x.tensor: x.reason for x in preflight(Streaming(), torch.randn(2, 3)).groups.pinned}
    assert reasons["cell.weight_ih"] == reasons["cell.weight_hh"] == "they are the model's output"


MODELS = {
    "cell": Loop(nn.LSTMCell),
    "gru cell": Loop(nn.GRUCell),
    "lstm": Layer(nn.LSTM(3, 8, 2, batch_first=True)),
    "gru": Layer(nn.GRU(3, 8, bidirectional=True, batch_first=True)),
    "rnn": Layer(nn.RNN(3, 8, batch_first=True, bias=False)),
    "projected": Layer(nn.LSTM(3, 8, proj_size=5, batch_first=True)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_budgets_receipts_and_reports_count_alike(name):
    model, x = copy.deepcopy(MODELS[name]), torch.randn(5, 4, 3)
    matrices = [p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "head" not in n]
    expected = 4 * sum(matrices) + model.head.weight.numel()
    groups = preflight(model, x).groups
    assert groups.count_macs() == 5 * expected
    assert measure(model, x, runs=0).macs == expected
    assert snapshot(model, x).macs == expected


def test_a_budget_of_multiplications_sees_cells():
    torch.manual_seed(0)
    model, x = Loop(nn.LSTMCell), torch.randn(5, 4, 3)
    before = measure(model, x, runs=0).macs
    rules = [{"op_types": ["LSTMCell"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    result = speedup(model, x)
    after = measure(model, x, runs=0).macs
    assert result.macs == (5 * before, 5 * after) and after < before


def test_sequences_along_the_first_axis_are_counted_per_example_not_per_step():
    model, x = nn.LSTM(3, 4), torch.zeros(5, 2, 3)
    assert measure(model, x, runs=0).macs == 5 * 16 * (3 + 4)
    assert snapshot(model, x).batch == 2
    alone = torch.zeros(5, 3)  # a single sequence
    assert measure(model, alone, runs=0).macs == 5 * 16 * (3 + 4)
    turned = nn.LSTM(3, 4, batch_first=True)
    assert measure(turned, x, runs=0).macs == 2 * 16 * (3 + 4)
