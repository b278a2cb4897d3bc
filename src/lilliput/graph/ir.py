"""A model as data: the ops that one run of it calls, the tensors they read and make, its parameters.

A reader of each framework makes such a graph. An op has a neutral name (``conv``, ``linear``,
``reshape`` …) and arguments by name, so that what is known of an op is written once.

>>> x, weight = Tensor((2, 4), is_input=True), Tensor((8, 4), parameter=Parameter("fc.weight"))
>>> graph = Graph(inputs=[x], parameters={"fc.weight": weight}, trained={"fc.weight": 32})
>>> y = graph.add(Op("linear", {"input": x, "weight": weight, "bias": None}), (2, 8))
>>> y.maker.name, [op.name for op in x.users]
('linear', ['linear'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Scope = tuple[str, str]  # one call of a module: a key of its own, and the path of the module
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Parameter:
    """What a model holds under a name.

    Parameters
    ----------
    name : str
        Full name; a tied one has the name that comes first in the model.
    is_trained : bool
        Whether masks reach it; statistics and tables are held, but not trained.
    """

    name: str
    is_trained: bool = True


@dataclass(eq=False)
class Tensor:
    """A tensor in the graph, known by identity.

    Parameters
    ----------
    shape : tuple of int
        Its sizes on the example inputs.
    maker : Op, optional
        The op that makes it; None for inputs, parameters and constants.
    parameter : Parameter, optional
        What it is, if the model holds it.
    dtype : str
        The type of its entries, as the framework calls it.
    is_input, is_output : bool
        Whether it goes into the model, or comes out.
    """

    shape: Shape
    maker: Op | None = None
    parameter: Parameter | None = None
    dtype: str = ""
    is_input: bool = False
    is_output: bool = False
    users: dict[Op, None] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self  # a graph does not change once it is read


Results = Tensor | list[Tensor | None] | None


@dataclass(eq=False)
class Op:
    """One call of an operator.

    Parameters
    ----------
    name : str
        What it does, in neutral words; the key of its rule.
    arguments : dict
        Tensors, numbers and lists of them, by name.
    title, place : str
        What the framework calls it, and where it is in the user's code: for messages.
    scopes : tuple of Scope
        The calls of modules that it runs in, outermost first.
    is_pointwise : bool
        Whether it treats every element alike, so that it needs no rule of its own.
    run : callable, optional
        Runs it on other numbers in place of the one tensor that it reads; raises if it cannot.
    source : object
        What the reader made it from.
    """

    name: str
    arguments: dict[str, Any]
    title: str = ""
    place: str = "the model"
    scopes: tuple[Scope, ...] = ()
    is_pointwise: bool = False
    run: Callable[[Array], Array] | None = field(default=None, repr=False)
    source: Any = field(default=None, repr=False)
    results: Results = field(default=None, repr=False)
    number: int = 0

    def __str__(self) -> str:
        return f"{self.title or self.name} at {self.place}"

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among its arguments."""
        return tuple(x for x in flatten(self.arguments) if isinstance(x, Tensor))

    @cached_property
    def shapes(self) -> Any:
        """The shape of its result, a list of them if it has several, None if it has none."""
        if isinstance(self.results, list):
            return [None if x is None else x.shape for x in self.results]
        return None if self.results is None else self.results.shape


@dataclass(eq=False)
class Graph:
    """All ops of a model in the order in which they run.

    Parameters
    ----------
    ops : list of Op
        In order.
    inputs, outputs : list of Tensor
        What goes into the model, and comes out.
    parameters : dict
        What the model holds and its ops read, by name.
    trained : dict
        How many entries each trained parameter of the model has, those that no op reads included.
    simple : set of str
        Paths of the modules that take one tensor and return one, and can run on fewer channels.
    source : object
        What the reader made it from.
    """

    ops: list[Op] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    simple: frozenset[str] = frozenset()
    source: Any = None

    def __deepcopy__(self, memo: Any) -> Graph:
        return self

    def add(self, op: Op, shapes: Any, dtypes: Any = "") -> Any:
        """Append an op that makes tensors of these shapes; return its result or results."""
        op.number = len(self.ops)
        self.ops.append(op)
        for tensor in op.tensors:
            tensor.users[op] = None
        if isinstance(shapes, list):
            given = dtypes if isinstance(dtypes, list) else [dtypes] * len(shapes)
            op.results = [
                None if shape is None else Tensor(shape, op, dtype=dtype)
                for shape, dtype in zip(shapes, given, strict=True)
            ]
        else:
            op.results = None if shapes is None else Tensor(shapes, op, dtype=dtypes)
        return op.results

    def finish(self, outputs: Sequence[Tensor]) -> None:
        """Say what comes out of the model."""
        self.outputs = list(outputs)
        for tensor in outputs:
            tensor.is_output = True

    @cached_property
    def calls(self) -> dict[str, list[Op]]:
        """The ops in each call of each module, those of the modules that it calls included."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for key, _ in op.scopes:
                found.setdefault(key, []).append(op)
        return found

    def unreached(self) -> tuple[str, ...]:
        """Return the trained parameters that no op reads."""
        read = {name for name, tensor in self.parameters.items() if tensor.users}
        return tuple(name for name in self.trained if name not in read)


def flatten(arguments: Any) -> Iterator[Any]:
    """Yield what is in lists, tuples and dicts, however deep."""
    if isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from flatten(argument)
    elif isinstance(arguments, dict):
        yield from flatten(list(arguments.values()))
    else:
        yield arguments
