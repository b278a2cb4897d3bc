"""Recurrent layers in ONNX files: counted, and LSTMs executed on integers."""

import functools

import numpy as np
import onnx
import pytest
import torch
from fixed_quantizer import operators
from torch import nn

from lilliput.export import export_onnx
from lilliput.report.measure import measure
from lilliput.torch import PTQQuantizer

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

STEPS, INPUTS, UNITS = 7, 6, 64


class Net(nn.Module):
    """A recurrent layer, and a linear one that reads its last output."""

    def __init__(self, make=nn.LSTM, **options):
        super().__init__()
        self.rnn = make(INPUTS, UNITS, batch_first=True, **options)
        self.head = nn.Linear(UNITS * (2 if self.rnn.bidirectional else 1), 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def exported(model, folder, *, rules=None, target="onnxruntime", scale=1.0, **options):
    torch.manual_seed(1)
    x = torch.randn(3, STEPS, INPUTS) * scale
    quantizer = model.eval()
    if rules is not None:
        quantizer = PTQQuantizer(model, rules, example_inputs=x)
        quantizer.compress()
        quantizer.calibrate([x])
    path = folder / "net.onnx"
    return export_onnx(quantizer, path, x, target, **options), onnx.load(path).graph, x


ALL = [{"op_types": ["RNNBase", "Linear"]}]


def macs_of(model):
    matrices = [x.numel() for x in model.rnn.parameters() if x.dim() == 2]
    return STEPS * sum(matrices) + model.head.weight.numel()


@pytest.mark.parametrize("make", [nn.LSTM, slow(nn.GRU), nn.RNN])
def test_a_float_file_costs_what_its_model_does(make, tmp_path):
    torch.manual_seed(0)
    model = Net(make)
    result, _, x = exported(model, tmp_path)
    assert sum(layer.macs for layer in result.layers) == macs_of(model)
    assert measure(tmp_path / "net.onnx", x, runs=0).macs == macs_of(model)
    assert result.integer_share == 0
    before, after = result.receipt.before, result.receipt.after
    assert before.macs == after.macs == macs_of(model)


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True},
        *(slow(x) for x in ({}, {"bias": False})),
    ],
    ids=str,
)
def test_an_lstm_runs_on_integers_and_is_counted(options, tmp_path):
    torch.manual_seed(0)
    model = Net(**options)
    result, graph, _ = exported(model, tmp_path, rules=ALL)
    assert "LSTM" not in operators(graph)
    kernels = {layer.kernel for layer in result.layers if layer.op == "LSTM"}
    assert kernels == {"DynamicQuantizeLSTM"}
    assert sum(layer.macs for layer in result.layers) == macs_of(model)
    assert result.integer_share == 1
    assert result.layers[0].name == "rnn"
    # Weights alone, in float, are exactly the simulation; the kernel rounds activations besides.
    assert result.runtimes["onnxruntime_unoptimized"].sqnr > 90
    assert result.runtimes["onnxruntime"].sqnr > 30


def test_a_quantized_lstm_in_float_is_said_to_be_in_float(tmp_path):
    torch.manual_seed(0)
    model = Net(nn.GRU)
    result, _, _ = exported(model, tmp_path, rules=ALL)
    layer = result.layers[0]
    assert (layer.op, layer.integer) == ("GRU", False)
    assert layer.reason == "no integer kernel for GRU"
    assert result.integer_share == pytest.approx(model.head.weight.numel() / macs_of(model))


def rounded(x):
    """Round to unsigned 8 bits with a range that holds zero, as ONNX Runtime does while it runs."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / 255) or np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def integer_lstm(x, lstm):
    """Return the states of an LSTM that rounds its input as a whole, and its state at every step."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().numpy() for p in lstm._flat_weights)
    given = np.stack([rounded(x.numpy()) @ w_ih.T]).squeeze(0) + b_ih + b_hh
    hidden = cell = np.zeros((len(x), UNITS), np.float32)
    for step in range(x.shape[1]):
        gates = given[:, step] + rounded(hidden) @ w_hh.T
        i, f, g, o = np.split(gates, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-y)) for y in (i, f, o))
        cell = f * cell + i * np.tanh(g)
        hidden = o * np.tanh(cell)
    return hidden


def test_the_integer_kernel_computes_what_numpy_does(tmp_path):
    torch.manual_seed(0)
    model = Net()
    quantized = [{"op_types": ["LSTM"]}]
    result, _, x = exported(model, tmp_path, rules=quantized)
    received = execute_file(result.path, x)
    hidden = integer_lstm(x, model.rnn)
    expected = hidden @ model.head.weight.detach().numpy().T + model.head.bias.detach().numpy()
    np.testing.assert_allclose(received, expected, atol=2e-5)


def execute_file(path, x):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quant_bits": 16}, "no integer kernel for int16 weights"),
        (
            {"granularity": "per_group", "group_size": 16, "quant_scheme": "symmetric"},
            "with a scale per group",
        ),
    ],
    ids=["16 bits", "groups"],
)
def test_weights_that_the_kernel_does_not_take_stay_in_float_and_say_why(change, reason, tmp_path):
    torch.manual_seed(0)
    rules = [{"op_types": ["LSTM"], "quant_types": ["weight"], **change}]
    result, _, _ = exported(Net(), tmp_path, rules=rules)
    assert not result.layers[0].integer and reason in result.layers[0].reason
    assert result.runtimes["onnxruntime"].sqnr > 90


class Loop(nn.Module):
    """A cell that a Python loop calls, as streaming models do."""

    def __init__(self, cell):
        super().__init__()
        self.rnn, self.head = cell, nn.Linear(UNITS, 4)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.rnn(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize(
    ("cell", "op"),
    [
        (nn.LSTMCell(INPUTS, UNITS), "LSTM"),
        (nn.GRUCell(INPUTS, UNITS, bias=False), "GRU"),
        slow(nn.RNNCell(INPUTS, UNITS, nonlinearity="relu"), "RNN"),
    ],
    ids=["lstm", "gru", "rnn"],
)
def test_a_call_of_a_cell_is_a_layer_of_one_step(cell, op, tmp_path):
    model = Loop(cell)
    rules = [{"op_types": ["RNNCellBase", "Linear"]}]
    result, graph, _ = exported(model, tmp_path, rules=rules, dynamic_shapes=False)
    layers = [layer for layer in result.layers if layer.op == op]
    assert len(layers) == STEPS and operators(graph).count("Gemm") == 1
    assert sum(layer.macs for layer in result.layers) == macs_of(model)
    assert {layer.integer for layer in layers} == {op == "LSTM"}
    assert result.runtimes["onnxruntime_unoptimized"].sqnr > 90


@pytest.mark.parametrize(
    "rnn",
    [
        nn.RNN(INPUTS, UNITS, 2, bidirectional=True, batch_first=True),
        slow(nn.GRU),
    ],
    ids=["rnn", "gru"],
)
def test_the_number_of_steps_is_open(rnn, tmp_path):
    model = Net(rnn) if isinstance(rnn, type) else Net()
    if not isinstance(rnn, type):
        model.rnn, model.head = rnn, nn.Linear(2 * UNITS, 4)
    result, _, _ = exported(model, tmp_path)
    other = torch.randn(2, STEPS + 5, INPUTS)
    expected = model.eval()(other).detach().numpy()
    np.testing.assert_allclose(execute_file(result.path, other), expected, atol=1e-5)


def test_an_input_that_eight_bits_would_ruin_keeps_its_lstm_in_float(tmp_path):
    torch.manual_seed(0)
    spread = 10 ** torch.linspace(-4, 2, INPUTS)  # energies of a spectrum
    model = Net()
    model.rnn.weight_ih_l0.data /= spread
    result, _, _ = exported(model, tmp_path, rules=ALL, scale=spread)
    assert not result.layers[0].integer
    assert "8 bits are too coarse for its inputs" in result.layers[0].reason
    assert "exclude it from quantization" in " ".join(result.notes)
    assert result.runtimes["onnxruntime"].sqnr > 30


@pytest.mark.parametrize("target", [slow("generic"), "openvino"])
def test_other_targets_get_standard_operators(target, tmp_path):
    torch.manual_seed(0)
    result, graph, _ = exported(Net(), tmp_path, rules=ALL, target=target)
    assert all(node.domain == "" for node in graph.node)
    assert "only ONNX Runtime" in result.layers[0].reason
