"""Find the layers of a captured model that can be refitted: convolutions and linear layers, each used once.

A layer that lost some of its inputs is fitted to its previous output. Two operations after it belong
to the fit. A batch norm after it takes the constant part if the layer has no bias. And if its output
is added to a value that is already known (a shortcut), the *sum* is the target of the fit: the layer
can also compensate for the loss of the shortcut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from lilliput.frameworks.torch.capture import Captured
from lilliput.frameworks.torch.nodes import op_name

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm in evaluation: a factor and a shift per channel."""

    node: fx.Node
    weight: str | None
    bias: str | None
    mean: str
    variance: str
    epsilon: float

    def factor(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the factor of each channel."""
        factor = (tensors[self.variance].double() + self.epsilon).rsqrt()
        return factor if self.weight is None else factor * tensors[self.weight].double()

    def shift(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the shift of each channel."""
        shift = -tensors[self.mean].double() * self.factor(tensors)
        return shift if self.bias is None else shift + tensors[self.bias].double()


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer to refit: its node, the names of its parameters, the operations after it."""

    node: fx.Node
    weight: str
    bias: str | None
    norm: Norm | None
    total: fx.Node | None = None  # the sum of its output, directly or after its norm
    other: fx.Node | None = None  # the other addend

    @property
    def source(self) -> fx.Node:
        """The node whose value the layer reads."""
        node: fx.Node = argument(self.node, "input")
        return node

    @property
    def is_linear(self) -> bool:
        """Whether channels are the last axis."""
        return op_name(self.node) == "linear"

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return 1 if self.is_linear else int(argument(self.node, "groups"))

    @property
    def goal(self) -> fx.Node:
        """The node whose value in the original model is the target."""
        return self.node if self.total is None else self.total

    def rows(self, value: Tensor, picked: Tensor) -> Tensor:
        """Return some positions of an output as (rows, channels)."""
        if self.is_linear:
            return value.flatten(0, -2)[picked]
        flat = value.flatten(2)[:, :, picked]
        return flat.transpose(1, 2).flatten(0, 1)

    def patches(self, value: Tensor, picked: Tensor, weight: Tensor) -> Tensor:
        """Return the values that the layer multiplies by its weight there, as (groups, rows, inputs)."""
        if self.is_linear:
            return value.flatten(0, -2)[picked][None]
        sizes = weight.shape[2:]
        dims = len(sizes)
        stride, dilation = (_spread(argument(self.node, x), dims) for x in ("stride", "dilation"))
        padded = functional.pad(value, _padding(argument(self.node, "padding"), sizes, dilation))
        counts = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(padded.shape[2:], sizes, stride, dilation, strict=True)
        ]
        starts = [i * s for i, s in zip(_unravel(picked, counts), stride, strict=True)]
        taps = []
        for offset in product(*map(range, sizes)):
            at = [x + o * d for x, o, d in zip(starts, offset, dilation, strict=True)]
            index: Any = (slice(None), slice(None), *at)
            taps.append(padded[index])
        patches = torch.stack(taps, -1)  # (examples, channels, positions, taps)
        examples, channels, positions, _ = patches.shape
        split = patches.view(examples, self.groups, channels // self.groups, positions, -1)
        return split.permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)

    def positions(self, value: Tensor) -> int:
        """Return how many positions an output has, per example for convolutions."""
        return prod(value.shape[:-1]) if self.is_linear else prod(value.shape[2:])


def find_readers(captured: Captured) -> list[Reader]:
    """Return the layers that can be refitted, in the order in which they run."""
    counts: dict[str, int] = {}
    for node in captured.graph.nodes:
        if node.op == "get_attr":
            name = captured.names.get(str(node.target), str(node.target))
            counts[name] = counts.get(name, 0) + len(node.users)
    private = {name for name, count in counts.items() if count == 1}
    found = (_reader(captured, node, private) for node in captured.graph.nodes)
    return [reader for reader in found if reader is not None]


def _reader(captured: Captured, node: fx.Node, private: set[str]) -> Reader | None:
    if node.op != "call_function" or op_name(node) not in (*_CONVOLUTIONS, "linear"):
        return None
    weight = _own(captured, argument(node, "weight"), private)
    shape = getattr(node.meta.get("val"), "shape", ())
    has_batch = len(shape) > 1 and (op_name(node) == "linear" or len(shape) == _dims(node) + 2)
    if weight is None or not has_batch or not isinstance(argument(node, "input"), fx.Node):
        return None
    bias = _own(captured, argument(node, "bias"), private)
    if bias is None and argument(node, "bias") is not None:
        return None  # a bias that others use as well, or a computed one
    norm = _norm_after(captured, node, private)
    return _with_total(Reader(node, weight, bias, norm))


def _dims(node: fx.Node) -> int:
    """Return the number of spatial dimensions of a convolution."""
    return int(op_name(node)[-2])


def _own(captured: Captured, node: Any, private: set[str]) -> str | None:
    """Return the name of a parameter that only this op reads."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    name = str(node.target)
    return name if captured.names.get(name) in private else None


def _norm_after(captured: Captured, node: fx.Node, private: set[str]) -> Norm | None:
    user = _only_user(node)
    if user is None or op_name(user) != "batch_norm" or argument(user, "training"):
        return None
    parts = [argument(user, x) for x in ("weight", "bias", "running_mean", "running_var")]
    names = [_own(captured, part, private) for part in parts]
    if any(part is not None and name is None for part, name in zip(parts, names, strict=True)):
        return None
    weight, bias, mean, variance = names
    if mean is None or variance is None:
        return None
    return Norm(user, weight, bias, mean, variance, float(argument(user, "eps")))


def _with_total(reader: Reader) -> Reader:
    """Return the reader with the sum that is the only reader of its output, if there is one."""
    last = reader.node if reader.norm is None else reader.norm.node
    user = _only_user(last)
    if user is None or op_name(user) != "add" or argument(user, "alpha") not in (None, 1):
        return reader
    terms = [argument(user, "input"), argument(user, "other")]
    others = [x for x in terms if isinstance(x, fx.Node) and x is not last]
    if len(others) != 1 or not _same_shape(others[0], last):
        return reader
    return Reader(reader.node, reader.weight, reader.bias, reader.norm, user, others[0])


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _same_shape(first: fx.Node, second: fx.Node) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (first, second)]
    return shapes[0] is not None and tuple(shapes[0]) == tuple(shapes[1] or ())


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument of an op by name, or its default."""
    for i, known in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if known.name in ((name, "self") if name == "input" else (name,)):
            if i < len(node.args):
                return node.args[i]
            default = known.default_value if known.has_default_value() else None
            return node.kwargs.get(known.name, default)
    return None


def _spread(value: Any, dims: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(x) for x in (values * dims if len(values) == 1 else values)]


def _padding(padding: Any, sizes: Any, dilation: list[int]) -> list[int]:
    """Return the padding of a convolution in the form of ``functional.pad``: last dimension first."""
    if padding == "valid":
        return [0, 0] * len(sizes)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(sizes, dilation, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(p, p) for p in _spread(padding, len(sizes))]
    return [x for pair in reversed(pairs) for x in pair]


def _unravel(places: Tensor, counts: list[int]) -> Iterator[Tensor]:
    """Yield the coordinates of flat positions, dimension by dimension."""
    for i in range(len(counts)):
        inner = prod(counts[i + 1 :])
        yield places // inner % counts[i]
