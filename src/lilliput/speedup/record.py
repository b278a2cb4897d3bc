"""Read the graph of a model off one run of it, at the level of the functions that its code calls."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from lilliput.frames import is_code_of
from lilliput.speedup.compare import tensors_of

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None))
# What tells Python the numbers in a tensor: code may then decide by them.
_TELLING = ("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose")
_TELLING_METHODS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
# What makes tensors whose size the numbers in others decide.
_COUNTING = {"nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "argwhere"}
_COUNTING |= {"nonzero_numpy", "_unique2", "unique_dim"}


class Unrecorded(Exception):
    """A run that does not tell what another run would do; the reason is the message."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, every operator that is called becomes a node of :attr:`graph`.

    In inference mode torch hands operators over before it takes them apart: ``linear`` and
    ``scaled_dot_product_attention``, not what they are made of.

    Parameters
    ----------
    model : torch.nn.Module
        The model that is going to run.
    held : dict
        The parameters and buffers that the graph shall know by name.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # so that the compiler, seconds of imports, is not loaded for nothing

    def __init__(self, model: nn.Module, held: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.tensors: dict[str, Tensor] = {}
        self.simple: dict[str, bool] = {}  # modules that just make one tensor of another
        self._paths = {module: path for path, module in model.named_modules()}
        self._token = object()  # tells what was noted on a tensor in this run from what was before
        self._held = {id(tensor): self._attribute(name, tensor) for name, tensor in held.items()}
        self._varies = set(self._held.values())  # what depends on inputs or weights
        self._stack: dict[str, tuple[str, type]] = {}
        self._calls = 0
        self._thread = get_ident()

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run a model once."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        try:
            with torch.inference_mode():
                args, kwargs = tree_map(self._input, (args, kwargs))
                with _said_to_be_traced(), _Methods(self), self:
                    output = model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        strange = [x for x in tree_iter(_unpacked(output)) if not isinstance(x, _PLAIN)]
        if strange:
            raise Unrecorded(f"it returns a {type(strange[0]).__name__}")
        self.graph.output(tuple(self._node_of(x) for x in tensors_of(output)))

    def _input(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.clone()  # the model may write to it
        node = self.graph.placeholder(f"input_{len(self._varies) - len(self._held)}")
        self._varies.add(node)
        self._note(value, node)
        return value

    def _enter(self, module: nn.Module, args: Any) -> None:
        if get_ident() == self._thread:
            path = self._paths.get(module, "")
            self._calls += 1
            self._stack[f"{path}@{self._calls}"] = (path, type(module))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if get_ident() != self._thread:
            return
        path, _ = self._stack.popitem()[1]
        is_simple = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        is_simple &= isinstance(output, Tensor) and not module._modules and not module._buffers
        self.simple[path] = self.simple.get(path, True) and is_simple

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_map(self._argument, (args, kwargs))
        node = self.graph.call_function(func, given[0], given[1])
        if any(x in self._varies for x in node.all_input_nodes):
            self._varies.add(node)
            _check_known_beforehand(func, args)
        node.meta["nn_module_stack"] = dict(self._stack)
        node.meta["stack_trace"] = _line_of_the_user()
        result = func(*args, **kwargs)
        self._note_result(result, node)
        return result

    def look(self, func: Any, tensor: Tensor) -> None:
        """Raise if code is about to read, past all operators, numbers that are different in other runs."""
        if self._node_of(tensor) in self._varies:
            raise Unrecorded(f"its code looks at numbers in tensors ({func.__name__})")

    def same(self, tensor: Tensor, other: Tensor) -> None:
        """Note that a tensor holds what another one does."""
        self._note(tensor, self._node_of(other))

    def _argument(self, value: Any) -> Any:
        return self._node_of(value) if isinstance(value, Tensor) else value

    def _node_of(self, tensor: Tensor) -> fx.Node:
        noted: tuple[object, fx.Node] | None = getattr(tensor, "_lilliput_node", None)
        if noted is not None and noted[0] is self._token:
            return noted[1]
        if id(tensor) not in self._held:  # made by no operator: a number in the code
            self._held[id(tensor)] = self._attribute(f"constant_{len(self.tensors)}", tensor)
        return self._held[id(tensor)]

    def _attribute(self, name: str, tensor: Tensor) -> fx.Node:
        node = self.graph.get_attr(name)
        node.meta["val"] = _shape_only(tensor)
        self.tensors[name] = tensor  # which also keeps its identity from being given away again
        return node

    def _note_result(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, (list, tuple)):
            node.meta["val"] = [_shape_only(x) if isinstance(x, Tensor) else x for x in result]
            for i, item in enumerate(result):
                if isinstance(item, Tensor):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    part.meta |= {k: x for k, x in node.meta.items() if k != "val"}
                    if node in self._varies:
                        self._varies.add(part)
                    self._note(item, part)

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["val"] = _shape_only(tensor)
        if id(tensor) in self._held:  # changed in place
            self._held[id(tensor)] = node
        else:
            tensor._lilliput_node = (self._token, node)  # type: ignore[attr-defined]


class _Methods(TorchFunctionMode):
    """Sees the methods of tensors that call no operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TELLING_METHODS:
            self.recorder.look(func, args[0])
        result = func(*args, **(kwargs or {}))
        if func is Tensor.data.__get__:  # type: ignore[attr-defined]
            self.recorder.same(result, args[0])
        return result


@contextmanager
def _said_to_be_traced() -> Iterator[None]:
    """Answer code that asks as torch.export does: it then takes no short cut that depends on numbers."""
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


def _check_known_beforehand(func: Any, args: Any) -> None:
    """Raise if Python, or a size, will depend on the numbers in tensors."""
    name = func._schema.name.split("::")[-1]
    if name in _TELLING:
        raise Unrecorded(f"its code looks at numbers in tensors ({name})")
    masks = [x for x in args[1] if x is not None] if name == "index" else []
    counts = name in _COUNTING or (name == "where" and len(args) == 1)
    counts |= name == "repeat_interleave" and isinstance(args[min(1, len(args) - 1)], Tensor)
    if counts or any(x.dtype in (torch.bool, torch.uint8) for x in masks):
        raise Unrecorded(f"sizes depend on numbers in tensors ({name})")


def _shape_only(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _unpacked(output: Any) -> Any:
    """Return what is in an output, its packing gone where tensors are found in it."""
    found = list(tensors_of(output))
    return found if found and not isinstance(output, (Tensor, list, tuple, dict)) else output


def _line_of_the_user() -> str:
    """Return the line of the user's code that has called an operator, as a traceback shows it."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code is not Recorder.run.__code__:
        file = frame.f_code.co_filename
        if file != __file__ and not is_code_of(file, torch):
            return f'File "{file}", line {frame.f_lineno}'
        frame = frame.f_back
    return ""
