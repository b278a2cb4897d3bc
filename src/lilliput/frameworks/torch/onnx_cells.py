"""Trace recurrent cells and plain RNNs as recurrent layers of ONNX instead of single products.

torch's exporter writes ``nn.LSTM`` and ``nn.GRU`` as layers of ONNX, but decomposes cells and unrolls
``nn.RNN``: a dozen nodes per step, none of which a runtime recognizes as recurrent. A call of a cell is a
layer with one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decompositions

_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # of torch's gates in ONNX


@contextmanager
def whole_layers() -> Iterator[None]:
    """Prevent torch from running every step of recurrent layers when it only needs shapes.

    That would fix the number of steps, and take minutes for long sequences. Nothing is computed meanwhile.
    """
    names = {"one_layer_lstm": _lstm_shapes, "one_layer_rnn": _rnn_shapes}
    held = {name: getattr(decompositions, name) for name in names if hasattr(decompositions, name)}
    for name in held:
        setattr(decompositions, name, names[name])
    try:
        yield
    finally:
        for name, function in held.items():
            setattr(decompositions, name, function)


def _lstm_shapes(
    inp: Any, hidden: Any, params: Any, has_biases: bool, reverse: bool = False
) -> Any:
    out = _rnn_shapes(inp, hidden[0], params, has_biases)[0]
    return out, (hidden[0].clone(), hidden[1].clone())


def _rnn_shapes(
    inp: Any,
    hidden: Any,
    params: Any,
    has_biases: bool,
    hidden_fn: Any = None,
    reverse: bool = False,
) -> Any:
    units = hidden.shape[-1]
    return inp.new_zeros(*inp.shape[:-1], units), hidden.clone()


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the custom translations of torch operators for ``torch.onnx.export``."""
    aten: Any = torch.ops.aten
    return {
        aten.lstm_cell.default: _lstm_cell,
        aten.gru_cell.default: _cell("GRU", linear_before_reset=1),
        aten.rnn_tanh_cell.default: _cell("RNN"),
        aten.rnn_relu_cell.default: _cell("RNN", activations=["Relu"]),
        aten.rnn_tanh.input: _rnn("Tanh"),
        aten.rnn_relu.input: _rnn("Relu"),
    }


def _lstm_cell(
    input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    weights = [[w_ih, w_hh, b_ih, b_hh]]
    found = _write("LSTM", _in_front(input), [_in_front(x) for x in hx], weights)
    return tuple(_without(x, 0) for x in found[1:])


def _cell(kind: str, **attributes: Any) -> Callable[..., Any]:
    def translate(
        input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Any:
        weights = [[w_ih, w_hh, b_ih, b_hh]]
        found = _write(kind, _in_front(input), [_in_front(hx)], weights, **attributes)
        return _without(found[1], 0)

    return translate


def _rnn(activation: str) -> Callable[..., Any]:
    def translate(
        input: Any,
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        op = _operators()
        directions, step = (2 if bidirectional else 1), (4 if has_biases else 2)
        x = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input
        states = []
        for layer in range(num_layers):
            first = layer * directions
            state = op.Slice(hx, [first], [first + directions], axes=[0])
            weights = [
                list(params[i * step : i * step + step]) for i in range(first, first + directions)
            ]
            activations = [activation] * directions
            y, last = _write("RNN", x, [state], weights, activations=activations)
            # From (steps, directions, examples, units) to (steps, examples, directions * units).
            x = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
            states.append(last)
        y = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
        return y, states[0] if num_layers == 1 else op.Concat(*states, axis=0)

    return translate


def _write(
    kind: str, x: Any, states: list[Any], weights: list[list[Any]], **attributes: Any
) -> Any:
    """Return the output of a recurrent layer of ONNX for (steps, examples, size)."""
    op, units = _operators(), int(weights[0][1].shape[-1])
    stacked = [_stacked([_ordered(kind, one[i], units) for one in weights]) for i in range(2)]
    biases = [[b for b in one[2:] if b is not None] for one in weights]
    if biases[0]:
        parts = [op.Concat(*(_ordered(kind, b, units) for b in one), axis=0) for one in biases]
        stacked.append(_stacked(parts))
    named = dict(zip(("initial_h", "initial_c"), states, strict=False))
    direction = "bidirectional" if len(weights) > 1 else "forward"
    write = getattr(op, kind)
    return write(x, *stacked, **named, hidden_size=units, direction=direction, **attributes)


def _ordered(kind: str, weight: Any, units: int) -> Any:
    """Return a weight or a bias with its gates in the order of ONNX."""
    op, order = _operators(), _ORDER[kind]
    if len(order) == 1:
        return weight
    ends = ([i * units, (i + 1) * units] for i in order)
    return op.Concat(*(op.Slice(weight, [a], [b], axes=[0]) for a, b in ends), axis=0)


def _stacked(parts: list[Any]) -> Any:
    """Return one entry for each direction."""
    wide = [_in_front(x) for x in parts]
    return wide[0] if len(wide) == 1 else _operators().Concat(*wide, axis=0)


def _in_front(x: Any) -> Any:
    return _operators().Unsqueeze(x, [0])


def _without(x: Any, axis: int) -> Any:
    return _operators().Squeeze(x, [axis])


def _operators() -> Any:
    from onnxscript import opset18

    return opset18
