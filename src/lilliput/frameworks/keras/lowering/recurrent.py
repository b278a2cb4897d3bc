"""Recurrent layers: LSTM, GRU, SimpleRNN, in one direction or two."""

from __future__ import annotations

from typing import Any

from keras import layers

from lilliput.frameworks.keras.discover import cells_of
from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, kind_of, lowering
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.tensors import variables_of
from lilliput.graph.ir import Tensor

_LAYERS = (layers.LSTM, layers.GRU, layers.SimpleRNN)
_CELLS = ("LSTMCell", "GRUCell", "SimpleRNNCell")
# With these, a hidden unit without weights stays at zero.
_ACTIVATIONS = ("tanh", "relu", "linear", "softsign", "elu", "selu", "gelu", "silu")


@lowering("LSTM", "GRU", "SimpleRNN")
def recurrent(writer: Writer) -> Any:
    """Run one layer in one direction."""
    states = writer.inputs()[1:]
    made = _run(writer, writer.layer, writer.input(), states)
    shapes = [writer.shape(k) for k in range(len(writer.node.outputs))]
    return made[: len(shapes)] if len(shapes) > 1 else made[0]


def _run(writer: Writer, layer: Any, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    """Return the output of a recurrent layer and its states."""
    cell = layer.cell
    if kind_of(cell) not in _CELLS or len(x.shape) != 3:
        raise UnknownError("its cells are unknown")
    if layer.stateful or getattr(cell.activation, "__name__", "") not in _ACTIVATIONS:
        raise UnknownError("it keeps its state, or its activation maps zero to another value")
    batch, steps, _ = x.shape
    size = (batch, cell.units)
    first = (batch, steps, cell.units) if layer.return_sequences else size
    count = 2 if kind_of(cell) == "LSTMCell" else 1
    made: list[Tensor] = writer.op(
        "recurrent",
        [first, *[size] * count],
        input=x,
        states=states,
        cells=[[_weights(writer, cell)]],
        matrices=[writer.kernel(name, cell) for name in ("kernel", "recurrent_kernel")],
    )
    return made


def _weights(writer: Writer, cell: Any) -> list[Tensor]:
    """Return the weights of a cell with the gate dimension first."""
    turned = [
        writer.permute(writer.kernel(name, cell), (1, 0)) for name in ("kernel", "recurrent_kernel")
    ]
    bias = writer.parameter("bias", cell)
    if bias is None:
        return turned
    return [*turned, writer.move(bias, -1, 0)]  # for a GRU one for inputs and one for states


@lowering("RNN")
def stacked(writer: Writer) -> Any:
    """Count the multiplications of cells of any kind; nothing else is known of them."""
    cells = cells_of(writer.layer)
    pairs = [(cell, name) for cell in cells for name in ("kernel", "recurrent_kernel")]
    matrices = [x for cell, name in pairs if (x := writer.parameter(name, cell)) is not None]
    held = [writer.parameter(name, cell) for cell in cells for name, _ in variables_of(cell)]
    shapes = [writer.shape(k) for k in range(len(writer.node.outputs))]
    x, *states = writer.inputs()
    return writer.op(
        "recurrent", shapes, input=x, states=states, cells=None, matrices=matrices, held=held
    )


@lowering("Bidirectional")
def both(writer: Writer) -> Any:
    """Run one layer forward and one backward, and join their outputs."""
    layer = writer.layer
    inner = (layer.forward_layer, layer.backward_layer)
    is_plain = all(unshadowed(type(x)) in _LAYERS for x in inner)
    if not is_plain or len(writer.node.inputs) != 1 or len(writer.node.outputs) != 1:
        raise UnknownError("its layers are unknown, or it passes states")
    forth, back = (_run(writer, x, writer.input(), [])[0] for x in inner)
    if layer.merge_mode == "concat":
        dim = len(forth.shape) - 1
        return writer.op("cat", writer.shape(), tensors=[forth, back], dim=dim)
    if layer.merge_mode in ("sum", "ave", "mul"):
        name = "mul" if layer.merge_mode == "mul" else "add"
        return writer.op(name, writer.shape(), is_pointwise=True, input=forth, other=back)
    raise UnknownError("it returns both directions separately")
