"""A Keras model as neutral ops of :mod:`lilliput.graph.ir`, layer by layer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
from keras import tree

from lilliput.frameworks.keras.graph import Graph as Calls
from lilliput.frameworks.keras.graph import read_graph
from lilliput.frameworks.keras.lowering import find_lowering
from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, kind_of
from lilliput.frameworks.keras.narrow import can_narrow
from lilliput.frameworks.keras.sizes import with_sizes
from lilliput.frameworks.keras.tensors import Tensors, variables_of
from lilliput.graph.ir import Graph, Op, Tensor, flatten

log = logging.getLogger("lilliput")

# Raised for layers that are called in a way that their lowering does not expect.
_FAILURES = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class Read:
    """The sources of a graph.

    Parameters
    ----------
    model : keras.Model
        The model.
    calls : Calls
        The layers and operations that it calls.
    tensors : Tensors
        Its variables.
    values : dict
        The tensors of the graph, by the number of the value in the calls.
    """

    model: Any
    calls: Calls
    tensors: Tensors
    values: dict[int, Tensor]


def graph_of(model: Any, example_inputs: Any = None) -> Graph:
    """Return the graph of a model on the example inputs, for a batch of one if there are none."""
    calls = with_sizes(read_graph(model, example_inputs), example_inputs)
    tensors = Tensors(model)
    shapes = [tuple(x.shape) for x in tree.flatten(example_inputs) if hasattr(x, "shape")]
    batch = next((shape[0] for shape in shapes if shape), 1)
    writer = Writer(calls, tensors, int(batch))
    graph, values = writer.graph, writer.values
    for number in calls.inputs:
        values[number] = Tensor(writer.closed(number), is_input=True)
        graph.inputs.append(values[number])
    for number, node in enumerate(calls.nodes):
        writer.node, writer.number = node, number
        made = [x for x in flatten([_write(writer)]) if x is not None]
        values.update(zip(node.outputs, made, strict=True))
    _tie_calls(writer)
    graph.finish([values[number] for number in calls.outputs])
    variables = tensors.variables.items()
    graph.trained = {name: prod(x.shape) for name, x in variables if name in tensors.trained}
    graph.simple = frozenset(n.path for n in calls.nodes if can_narrow(n.operation))
    graph.source = Read(model, calls, tensors, values)
    return graph


def _write(writer: Writer) -> Any:
    """Translate one call of a layer or operation; return its results."""
    lowering = find_lowering(writer.layer)
    if lowering is None:
        return _give_up(writer, "no rule for it")
    try:
        return lowering(writer)
    except UnknownError as error:
        return _give_up(writer, str(error))
    except _FAILURES as error:
        log.debug("speedup: %s: %r", kind_of(writer.layer), error)
        return _give_up(writer, "called in an unknown way")


def _give_up(writer: Writer, why: str) -> Any:
    """Translate a layer to an unknown op; all that it reads is pinned."""
    layers = writer.layer._flatten_layers() if isinstance(writer.layer, keras.Layer) else ()
    held = [writer.parameter(name, x) for x in layers for name, _ in variables_of(x)]
    shapes = [writer.shape(k) for k in range(len(writer.node.outputs))]
    return writer.op("unknown", shapes, tensors=[*writer.inputs(), *held], why=why)


def _tie_calls(writer: Writer) -> None:
    """Give a layer that is called several times the same channels in each call."""
    values, calls = writer.values, writer.calls
    first: dict[int, Any] = {}
    for call in calls.calls:
        known = first.setdefault(id(call.operation), call)
        pairs = zip(known.inputs, call.inputs, strict=True)
        _tie(writer, [(values[a], values[b]) for a, b in pairs], call)
    for node in calls.nodes:
        if kind_of(node.operation) == "Reshape":  # its target is fixed in the layer
            known = first.setdefault(id(node.operation), node)
            _tie(writer, [(values[known.outputs[0]], values[node.outputs[0]])], node)


def _tie(writer: Writer, pairs: list[tuple[Tensor, Tensor]], call: Any) -> None:
    for pair in pairs:
        if pair[0] is not pair[1]:
            title = kind_of(call.operation)
            op = Op("same", {"tensors": list(pair)}, title, f"{call.path}, called again")
            writer.graph.add(op, None)
