"""A model as data: the ops called by one run, the tensors they read and produce, the model's parameters.

Each framework has a reader that creates such a graph. An op has a neutral name (``conv``, ``linear``,
``reshape`` …) and named arguments, so that rules for ops are written once.

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
Scope = tuple[str, str]  # one call of a module: a unique key, and the path of the module
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Parameter:
    """A named tensor of a model.

    Parameters
    ----------
    name : str
        Full name; a tied one has the name that comes first in the model.
    is_trained : bool
        Whether masks apply to it; statistics and tables belong to the model, but are not trained.
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
        The op that produces it; None for inputs, parameters and constants.
    parameter : Parameter, optional
        The parameter that it represents, if any.
    dtype : str
        The type of its entries, in the framework's terms.
    is_input, is_output : bool
        Whether it is an input or output of the model.
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
        Neutral name of the operation; the key of its rule.
    arguments : dict
        Tensors, numbers and lists of them, by name.
    title, place : str
        Its name in the framework, and its location in the user's code: for messages.
    scopes : tuple of Scope
        The module calls that it runs in, outermost first.
    is_pointwise : bool
        Whether it treats every element equally, so that it needs no rule of its own.
    run : callable, optional
        Runs it with other values for the only tensor that it reads; raises if it cannot.
    source : object
        The object that the reader created it from.
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
        """The shape of its result, a list if there are several results, None if there is none."""
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
        Inputs and outputs of the model.
    parameters : dict
        The parameters that ops read, by name.
    trained : dict
        Number of entries of each trained parameter, including those that no op reads.
    simple : set of str
        Paths of the modules that take one tensor, return one, and can run on fewer channels.
    source : object
        The object that the reader created it from.
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
        """Append an op with results of these shapes; return its result or results."""
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
        """Set the outputs of the model."""
        self.outputs = list(outputs)
        for tensor in outputs:
            tensor.is_output = True

    @cached_property
    def calls(self) -> dict[str, list[Op]]:
        """The ops in each call of each module, including those of the modules that it calls."""
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
    """Yield the items of nested lists, tuples and dicts."""
    if isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from flatten(argument)
    elif isinstance(arguments, dict):
        yield from flatten(list(arguments.values()))
    else:
        yield arguments
