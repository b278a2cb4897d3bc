"""The operations of a Keras model as data: their order, and the values they read and produce."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import keras
from keras import KerasTensor, tree
from keras.src.models.functional import Functional  # has no public name

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.shadow import unshadowed

# A value under construction: its number, by the identity of Keras's symbolic tensor.
Values = dict[int, int]


@dataclass(frozen=True)
class Node:
    """One call of an operation.

    Parameters
    ----------
    operation : keras.Operation
        The layer, or the operation of ``keras.ops``.
    path : str
        The path of the layer, ``"block/conv2"``; empty for an operation of ``keras.ops``.
    scopes : tuple of str
        The paths of the nested models it runs in, outermost first.
    inputs, outputs : tuple of int
        The values it reads, in the order of ``arguments.keras_tensors``, and those it produces.
    arguments : SymbolicArguments
        Its arguments as stored by Keras: ``args``, ``kwargs``, ``keras_tensors``.
    """

    operation: Any
    path: str
    scopes: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: Any


@dataclass(frozen=True)
class Call:
    """One call of a nested model: its inputs and outputs; its nodes are in the graph."""

    operation: Any
    path: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """All calls of a model in order of execution, and the shapes of all values."""

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shapes: dict[int, tuple[int | None, ...]]
    calls: tuple[Call, ...] = ()


def read_graph(model: Any, example_inputs: Any = None) -> Graph:
    """Return the operations of a model.

    Functional and Sequential models are read without running anything. Nested models are replaced by their
    operations; a layer that is called twice appears twice. A layer made of layers, such as
    ``MultiHeadAttention`` or ``LSTM``, is one operation. The ``call`` of a subclassed model runs once,
    on symbolic tensors; the model is not changed.

    Parameters
    ----------
    model : keras.Model
        A built model.
    example_inputs : array or structure of arrays, optional
        Inputs of a subclassed model, whose shapes are required. A tuple contains the arguments of
        ``call``; a dict as the only argument is passed unchanged.

    Raises
    ------
    UnsupportedModelError
        The model is not built, or it is a subclassed model without ``example_inputs``, or one that
        cannot run on symbolic tensors.

    Examples
    --------
    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    >>> [(node.path, node.inputs, node.outputs) for node in read_graph(model).nodes]
    [('head', (0,), (1,))]
    """
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"expected a keras.Model, received {type(model).__name__}: wrap layers in keras.Sequential"
        )
    function = function_of(model)
    if function is None and not model.built:
        raise UnsupportedModelError(
            f"{type(model).__name__} is not built, so its layers are unknown: call it once "
            "on a batch"
        )
    reader = _Reader(model)
    if function is not None:
        inputs = [reader.new(tensor) for tensor in function.inputs]
        outputs = reader.read_function(function, inputs, "", ())
    else:
        inputs, outputs = reader.read_subclass(model, example_inputs)
    nodes, calls = tuple(reader.nodes), tuple(reader.calls)
    return Graph(nodes, tuple(inputs), tuple(outputs), reader.shapes, calls)


def function_of(model: Any) -> Any:
    """Return Keras's graph of a Functional or Sequential model, or None for other objects."""
    own: Any = unshadowed(type(model))
    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None) if own.call is keras.Sequential.call else None
    if isinstance(model, keras.Model) and isinstance(model, keras.Function):
        return model if own.call is Functional.call else None
    return None


class _Reader:
    """Collects nodes; gives every tensor of every call its own number."""

    def __init__(self, model: Any) -> None:
        self.nodes: list[Node] = []
        self.calls: list[Call] = []
        self.paths: dict[int, list[str]] = {}
        for path, layer in layers_by_path(model).items():
            self.paths.setdefault(id(layer), []).append(path)
        self.shapes: dict[int, tuple[int | None, ...]] = {}
        self.numbers = count()

    def new(self, tensor: Any) -> int:
        number = next(self.numbers)
        self.shapes[number] = tuple(tensor.shape)
        return number

    def path_of(self, layer: Any, parent: str) -> str:
        """Return the path of a layer at its call."""
        known = self.paths.get(id(layer), ())
        joined = f"{parent}/{layer.name}" if parent else layer.name
        return next((x for x in known if x.rpartition("/")[0] == parent), joined)

    def read_function(
        self, function: Any, inputs: Sequence[int], path: str, scopes: tuple[str, ...]
    ) -> list[int]:
        """Read a Keras graph called with values; return the values that it returns."""
        values = dict(zip(map(id, function.inputs), inputs, strict=True))
        for node in ordered_nodes(function):
            if not node.is_input and all(id(x) in values for x in node.input_tensors):
                self.read_node(node, values, path, scopes)
        return [values[id(tensor)] for tensor in function.outputs]

    def read_node(self, node: Any, values: Values, path: str, scopes: tuple[str, ...]) -> None:
        operation = node.operation
        own = self.path_of(operation, path) if isinstance(operation, keras.layers.Layer) else ""
        inner = self.read_nested(node, values, own, scopes)
        outputs = [self.new(x) for x in node.outputs] if inner is None else inner
        values.update(zip(map(id, node.outputs), outputs, strict=True))
        if inner is None:
            read = tuple(values[id(tensor)] for tensor in node.input_tensors)
            self.nodes.append(Node(operation, own, scopes, read, tuple(outputs), node.arguments))

    def read_nested(
        self, node: Any, values: Values, own: str, scopes: tuple[str, ...]
    ) -> list[int] | None:
        """Read the model that a node calls; None if it is not a model, or cannot be read."""
        if not isinstance(node.operation, keras.Model):
            return None
        function = function_of(node.operation)
        if function is not None:
            given = _arguments_of_model(function, node.arguments)
            if given is None or any(id(x) not in values for x in given):
                return None
            return self.enter(node, function, [values[id(x)] for x in given], own, scopes)
        args, kwargs = node.arguments.convert(_copy)
        try:
            traced = _trace(node.operation, args, kwargs)
        except Exception:  # user code may raise anything
            return None
        if len(traced.outputs) != len(node.outputs):
            return None
        entering = [values[id(tensor)] for tensor in node.input_tensors]
        return self.enter(node, traced, entering, own, scopes)

    def enter(
        self, node: Any, function: Any, entering: list[int], own: str, scopes: tuple[str, ...]
    ) -> list[int]:
        outputs = self.read_function(function, entering, own, (*scopes, own))
        self.calls.append(Call(node.operation, own, tuple(entering), tuple(outputs)))
        return outputs

    def read_subclass(self, model: Any, example_inputs: Any) -> tuple[list[int], list[int]]:
        """Run the ``call`` of the whole model; return its input and output values."""
        name = type(model).__name__
        if example_inputs is None:
            raise UnsupportedModelError(
                f"{name} is a subclassed model: its operations are only known when it runs. Pass "
                "example_inputs (one batch), or build it as a Functional or Sequential model"
            )
        args = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
        try:
            traced = _trace(model, tree.map_structure(_symbol, args), {})
        except Exception as error:
            raise UnsupportedModelError(
                f"{name}.call does not run on symbolic tensors ({type(error).__name__}: {error}). Use "
                "keras.ops instead of functions of one backend, or build a Functional model"
            ) from error
        inputs = [self.new(tensor) for tensor in traced.inputs]
        return inputs, self.read_function(traced, inputs, "", ())


def ordered_nodes(function: Any) -> list[Any]:
    """Return the nodes of a Keras graph in the order in which Keras runs them."""
    by_depth = function._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _arguments_of_model(function: Any, arguments: Any) -> list[Any] | None:
    """Return the tensors that a nested model is called with, in its order; None where unclear."""
    given = arguments.args[0] if arguments.args else arguments.kwargs.get("inputs")
    if isinstance(given, dict) and not isinstance(function.input, dict):
        try:
            given = [given[tensor.name] for tensor in function.inputs]
        except KeyError:
            return None
    flat = tree.flatten(given)
    same = len(flat) == len(function.inputs) and all(
        isinstance(x, KerasTensor) and len(x.shape) == len(known.shape)
        for x, known in zip(flat, function.inputs, strict=True)
    )
    return flat if same else None


def _trace(model: Any, args: Any, kwargs: Any) -> Any:
    """Run the ``call`` of a subclassed model on symbolic tensors; return it as a Keras graph."""
    inputs = [x for x in tree.flatten((args, kwargs)) if isinstance(x, KerasTensor)]
    call: Callable[..., Any] = model.call
    if "training" in inspect.signature(call).parameters:
        kwargs = {**kwargs, "training": False}
    with _nodes_removed(model), keras.StatelessScope():
        return keras.Function(inputs, call(*args, **kwargs))


@contextmanager
def _nodes_removed(model: Any) -> Iterator[None]:
    """Remove the nodes that calls in this context add to the layers of a model."""
    layers = list(model._flatten_layers())
    before = [(len(x._inbound_nodes), len(x._outbound_nodes)) for x in layers]
    try:
        yield
    finally:
        for layer, (inbound, outbound) in zip(layers, before, strict=True):
            del layer._inbound_nodes[inbound:]
            del layer._outbound_nodes[outbound:]


def _symbol(array: Any) -> Any:
    if not hasattr(array, "shape"):
        return array
    dtype = keras.backend.standardize_dtype(array.dtype)
    is_float = keras.backend.is_float_dtype(dtype)
    return KerasTensor(tuple(array.shape), keras.backend.floatx() if is_float else dtype)


def _copy(item: Any) -> Any:
    return KerasTensor(item.shape, item.dtype) if isinstance(item, KerasTensor) else item
