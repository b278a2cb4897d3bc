"""A captured torch graph as neutral ops of :mod:`lilliput.graph.ir`, with named arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor as TorchTensor
from torch import fx, nn

from lilliput.frameworks.torch.capture import Captured, read
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.nodes import hint, op_name, place, shape_of
from lilliput.graph.ir import Array, Graph, Op, Parameter, Tensor

_SPACES = [f"{kind}_pool{n}d" for n in (1, 2, 3) for kind in ("max", "avg")]
_SPACES += [f"adaptive_{name}" for name in _SPACES] + ["_adaptive_avg_pool2d"]
_SPACES += [f"max_pool{n}d_with_indices" for n in (2, 3)]
_SPACES += [f"{kind}_pad{n}d" for n in (1, 2, 3) for kind in ("reflection", "replication")]
_SPACES += [
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
]
_FAMILIES = {
    "conv": ("conv1d", "conv2d", "conv3d"),
    "conv_transpose": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "matmul": ("mm", "bmm", "mv", "dot"),
    "addmm": ("baddbmm",),
    "attention": ("scaled_dot_product_attention",),
    "batch_norm": ("instance_norm", "cudnn_batch_norm", "native_batch_norm"),
    "layer_norm": ("rms_norm", "_fused_rms_norm"),
    "softmax": ("_softmax",),
    "log_softmax": ("_log_softmax",),
    "window": tuple(_SPACES),
    "channel_shuffle": ("native_channel_shuffle",),
    "reshape": ("view", "_unsafe_view", "flatten", "unflatten"),
    "reshape_as": ("view_as",),
    "unsqueeze": ("atleast_1d", "atleast_2d"),
    "permute": ("transpose", "t", "numpy_T", "movedim", "swapaxes", "swapdims", "mT", "adjoint"),
    "expand": ("expand_as", "broadcast_to"),
    "repeat": ("tile",),
    "cat": ("concat", "concatenate"),
    "split": ("split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"),
    "index": ("_unsafe_index",),
    "embedding_bag": ("_embedding_bag", "_embedding_bag_forward_only"),
    "pad": ("constant_pad_nd",),
    "identity": (
        *("to", "clone", "contiguous", "detach", "alias", "type_as", "_to_copy"),
        *("lift_fresh", "lift_fresh_copy"),
    ),
    "dropout": ("feature_dropout", "alpha_dropout", "native_dropout"),
    "mul": ("multiply",),
    "div": ("divide", "true_divide"),
    "clamp": ("clip",),
    "recurrent": ("lstm", "gru", "rnn_tanh", "rnn_relu"),
    "recurrent_cell": ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    "zeros": ("new_zeros",),
    "full": (
        *("ones", "empty", "new_ones", "new_full", "new_empty", "rand", "randn", "scalar_tensor"),
    ),
    "full_like": ("ones_like", "empty_like", "rand_like", "randn_like"),
    "nothing": (
        *("sym_size", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size", "item"),
        "_assert_tensor_metadata",
    ),
}
_NEUTRAL = {name: neutral for neutral, names in _FAMILIES.items() for name in names}


def graph_of(model: nn.Module, example_inputs: Any) -> Graph:
    """Return the graph of a plain model in eval mode."""
    return to_graph(read(model, *as_inputs(example_inputs)))


def to_graph(captured: Captured) -> Graph:
    """Return a captured graph as neutral ops; the captured one is its ``source``."""
    return _Reader(captured).read()


class _Reader:
    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.graph = Graph(trained=captured.parameters, simple=captured.simple, source=captured)
        self.made: dict[fx.Node, Any] = {}  # tensors, lists of them, numbers

    def read(self) -> Graph:
        for node in self.captured.graph.nodes:
            self.made[node] = self._node(node)
        return self.graph

    def _node(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.op == "placeholder":
            return self._input(value)
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "output":
            found = _flatten(self.given(node.args))
            self.graph.finish([x for x in found if isinstance(x, Tensor)])
            return None
        if node.target is operator.getitem:
            sequence, at = self.given(node.args[0]), node.args[1]
            is_item = isinstance(sequence, list) and isinstance(at, int)
            return sequence[at] if is_item else None
        return self._op(node, value)

    def _input(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._input(x) for x in value]
        if not isinstance(value, TorchTensor):
            return None if value is None else hint(value)
        tensor = Tensor(shape_of(value), dtype=str(value.dtype), is_input=True)
        self.graph.inputs.append(tensor)
        return tensor

    def _attribute(self, target: str) -> Tensor | None:
        """Return a parameter or buffer under its first name, one tensor for all its names."""
        held = self.captured.tensors.get(target)
        if held is None:
            return None
        name = self.captured.names.get(target)
        made = Tensor(tuple(held.shape), dtype=str(held.dtype))
        if name is None or not held.is_floating_point():
            return made
        made.parameter = Parameter(name, isinstance(held, nn.Parameter))
        return self.graph.parameters.setdefault(name, made)

    def _op(self, node: fx.Node, value: Any) -> Any:
        arguments = self._arguments(node)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int)):  # a computed size
            if any(isinstance(x, Tensor) for x in _flatten(arguments)):
                self.graph.add(Op("nothing", arguments, source=node), None)
            return hint(value)
        title = op_name(node)
        name = _NEUTRAL.get(title, title)
        try:
            _COMPLETE.get(name, _nothing)(title, arguments)
        except (KeyError, TypeError, ValueError):  # called in an unknown way
            name = title
        is_op = isinstance(node.target, torch._ops.OpOverload)
        op = Op(
            name,
            arguments,
            title,
            place(node),
            _scopes(node),
            is_op and _is_pointwise(node.target),
            (lambda array: self._run(node, array)) if is_op else None,
            node,
        )
        return self.graph.add(op, *_shapes(value))

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """Return an op's arguments by name, with nodes replaced by their results."""
        if not hasattr(node.target, "_schema"):
            return {**{str(i): self.given(x) for i, x in enumerate(node.args)}, **node.kwargs}
        found = {}
        for i, (name, default) in enumerate(_signature(node.target)):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(name, default)
            found["input" if name == "self" else name] = self.given(given)
        return found

    def given(self, argument: Any) -> Any:
        """Return the value of a node's argument: tensors for nodes, hints for symbolic sizes."""
        if isinstance(argument, fx.Node):
            return self.made.get(argument)
        if isinstance(argument, (list, tuple)):
            return [self.given(x) for x in argument]
        return argument

    def _run(self, node: fx.Node, array: Array) -> Array:
        """Run an op with other values for the only tensor that it reads."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        given = [self.given(x) for x in node.args]
        arguments = [tensor if isinstance(x, Tensor) else x for x in given]
        result = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
        if not isinstance(result, TorchTensor) or result.is_complex():
            raise TypeError("not one tensor of real numbers")
        return result.double().numpy()


@cache
def _signature(target: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names of an operator's arguments, and their defaults."""
    listed = target._schema.arguments
    return tuple((x.name, x.default_value if x.has_default_value() else None) for x in listed)


@cache
def _is_pointwise(target: Any) -> bool:
    return torch.Tag.pointwise in target.tags


def _shapes(value: Any) -> tuple[Any, Any]:
    """Return the shapes and types of a node's results."""
    if isinstance(value, TorchTensor):
        return shape_of(value), str(value.dtype)
    if isinstance(value, (list, tuple)):
        tensors = [x if isinstance(x, TorchTensor) else None for x in value]
        shapes = [None if x is None else shape_of(x) for x in tensors]
        return shapes, ["" if x is None else str(x.dtype) for x in tensors]
    return None, ""


def _scopes(node: fx.Node) -> tuple[tuple[str, str], ...]:
    stack = node.meta.get("nn_module_stack") or {}
    return tuple((str(key), str(path)) for key, (path, _) in stack.items())


def _flatten(content: Any) -> list[Any]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, (list, tuple)):
        return [x for item in content for x in _flatten(item)]
    return [content]


# -- arguments with different names or conventions within a family of ops --------------------------


def _nothing(title: str, arguments: dict[str, Any]) -> None:
    pass


def _matmul(title: str, arguments: dict[str, Any]) -> None:
    if title != "matmul":
        named = {"mm": "mat2", "bmm": "mat2", "mv": "vec", "dot": "tensor"}
        arguments["other"] = arguments.pop(named[title])


def _addmm(title: str, arguments: dict[str, Any]) -> None:
    if title == "baddbmm":
        arguments["mat1"], arguments["mat2"] = arguments.pop("batch1"), arguments.pop("batch2")


def _permute(title: str, arguments: dict[str, Any]) -> None:
    """Write every reordering of dimensions as their new order."""
    count = len(arguments["input"].shape)
    order = list(range(count))
    if title == "permute":
        order = [d % count for d in arguments["dims"]]
    elif title in ("t", "numpy_T"):
        order = order[::-1]
    elif title == "movedim":
        order = _moved(arguments, order)
    else:
        named = [arguments.get(x) for x in ("dim0", "dim1", "axis0", "axis1")]
        i, j = ([x for x in named if x is not None] or [-2, -1])[:2]
        order[i], order[j] = order[j], order[i]
    arguments["dims"] = order


def _moved(arguments: dict[str, Any], order: list[int]) -> list[int]:
    given = (arguments["source"], arguments["destination"])
    pairs = [[x] if isinstance(x, int) else list(x) for x in given]
    source, target = ([d % len(order) for d in dims] for dims in pairs)
    rest = [d for d in order if d not in source]
    for d, s in sorted(zip(target, source, strict=True)):
        rest.insert(d, s)
    return rest


def _window(title: str, arguments: dict[str, Any]) -> None:
    arguments["space"] = int(next(c for c in title if c in "123"))


def _recurrent(title: str, arguments: dict[str, Any]) -> None:
    """Sort the weights of a recurrent layer by layer and direction."""
    arguments.setdefault("input", arguments.get("data"))  # of packed sequences
    states = arguments["hx"]
    arguments["states"] = states if isinstance(states, list) else [states]
    params = arguments["params"]
    arguments["matrices"] = [x for x in params if len(x.shape) == 2]
    step = 4 if arguments["has_biases"] else 2
    directions = 2 if arguments["bidirectional"] else 1
    layers = arguments["num_layers"]
    arguments["cells"] = None
    if "data" not in arguments and len(params) == step * directions * layers:
        parts = [params[i : i + step] for i in range(0, len(params), step)]
        arguments["cells"] = [parts[i : i + directions] for i in range(0, len(parts), directions)]


def _recurrent_cell(title: str, arguments: dict[str, Any]) -> None:
    states = arguments["hx"]
    arguments["states"] = states if isinstance(states, list) else [states]
    weights = [arguments[x] for x in ("w_ih", "w_hh", "b_ih", "b_hh")]
    arguments["cells"] = [[[x for x in weights if x is not None]]]
    arguments["matrices"] = weights[:2]


_COMPLETE: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "matmul": _matmul,
    "addmm": _addmm,
    "permute": _permute,
    "window": _window,
    "recurrent": _recurrent,
    "recurrent_cell": _recurrent_cell,
}
