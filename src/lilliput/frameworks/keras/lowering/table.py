"""The table of functions that translate Keras layers to neutral ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lilliput.frameworks.keras.graph import Graph as Calls
from lilliput.frameworks.keras.graph import Node
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.tensors import Tensors
from lilliput.graph.ir import Graph, Op, Parameter, Shape, Tensor

LOWERINGS: dict[str, Lowering] = {}


class UnknownError(Exception):
    """A layer or operation that cannot be translated to neutral ops; the message is the reason."""


class Writer:
    """The graph under construction, and the layer call that is being translated.

    Parameters
    ----------
    calls : Calls
        The layers and operations that the model calls.
    tensors : Tensors
        The variables of the model.
    batch : int
        Number of examples of a call, if the model does not specify it.
    """

    def __init__(self, calls: Calls, tensors: Tensors, batch: int) -> None:
        self.calls, self.tensors, self.batch = calls, tensors, batch
        self.graph = Graph()
        self.values: dict[int, Tensor] = {}  # by the number of a value in the calls
        self.node: Node = calls.nodes[0]
        self.number = 0  # of the call

    def op(self, name: str, shape: Any, /, is_pointwise: bool = False, **arguments: Any) -> Any:
        """Append an op for the layer; return its result or results."""
        path = self.node.path or (self.node.scopes[-1] if self.node.scopes else "")
        scopes = ((f"{path}@{self.number}", path),)
        title = kind_of(self.node.operation)
        made = Op(name, arguments, title, path or "the model", scopes, is_pointwise)
        made.source = self.node
        return self.graph.add(made, shape)

    # -- inputs of a layer -------------------------------------------------------------------------

    @property
    def layer(self) -> Any:
        """The layer or operation that is called."""
        return self.node.operation

    def inputs(self) -> list[Tensor]:
        """Return the tensors that it is called with."""
        return [self.values[number] for number in self.node.inputs]

    def input(self) -> Tensor:
        """Return the first tensor that it is called with."""
        return self.values[self.node.inputs[0]]

    def argument(self, position: int, name: str) -> Tensor | None:
        """Return a tensor argument by position or name, or None."""
        given = self.node.arguments
        found = given.args[position] if position < len(given.args) else given.kwargs.get(name)
        numbers = dict(zip(map(id, given.keras_tensors), self.node.inputs, strict=True))
        return self.values[numbers[id(found)]] if id(found) in numbers else None

    def shape(self, k: int = 0) -> Shape:
        """Return the shape of a result."""
        return self.closed(self.node.outputs[k])

    def closed(self, number: int) -> Shape:
        """Return the shape of a value, with 1 for unknown sizes."""
        first, *others = self.calls.shapes[number] or (1,)
        sizes = [1 if n is None else int(n) for n in others]
        return (self.batch if first is None else int(first), *sizes)

    def is_open(self) -> bool:
        """Whether sizes other than the batch are unknown."""
        numbers = (*self.node.inputs, *self.node.outputs)
        return any(None in self.calls.shapes[number][1:] for number in numbers)

    def parameter(self, attribute: str, layer: Any = None) -> Tensor | None:
        """Return a variable of the layer, or None if it has none of that name."""
        found = self.tensors.find(self.layer if layer is None else layer, attribute)
        if found is None:
            return None
        name, shape = found
        if name not in self.graph.parameters:
            held = Parameter(name, name in self.tensors.trained)
            self.graph.parameters[name] = Tensor(shape, parameter=held)
        return self.graph.parameters[name]

    def kernel(self, attribute: str = "kernel", layer: Any = None) -> Tensor:
        """Return a variable that the layer must have."""
        found = self.parameter(attribute, layer)
        if found is None:
            raise UnknownError(f"it has no {attribute} of its own")
        return found

    # -- common ops --------------------------------------------------------------------------------

    def permute(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Reorder the dimensions of a tensor."""
        order = [d % len(tensor.shape) for d in order]
        if order == sorted(order):
            return tensor
        shape = tuple(tensor.shape[d] for d in order)
        made: Tensor = self.op("permute", shape, input=tensor, dims=order)
        return made

    def move(self, tensor: Tensor, source: int, target: int) -> Tensor:
        """Move one dimension of a tensor."""
        order = list(range(len(tensor.shape)))
        order.insert(target % len(order), order.pop(source % len(order)))
        return self.permute(tensor, order)

    def channels_first(self, tensor: Tensor) -> Tensor:
        """Return the input with its channels right after the batch."""
        is_first = getattr(self.layer, "data_format", "") == "channels_first"
        return tensor if is_first else self.move(tensor, -1, 1)

    def channels_back(self, tensor: Tensor) -> Tensor:
        """Undo :meth:`channels_first`."""
        is_first = getattr(self.layer, "data_format", "") == "channels_first"
        return tensor if is_first else self.move(tensor, 1, -1)

    def same(self, *tensors: Tensor) -> None:
        """Make tensors of one shape lose the same indices."""
        self.op("same", None, tensors=list(tensors))


Lowering = Callable[[Writer], Any]


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function for layers, or for operations named ``ops.…``."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return register


def kind_of(operation: Any) -> str:
    """Return the name of an operation's class in the user's code."""
    return unshadowed(type(operation)).__name__
