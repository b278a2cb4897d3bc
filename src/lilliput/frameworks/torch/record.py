"""Record the graph of a model in one run, at the level of the functions that its code calls."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lilliput.frames import is_code_of
from lilliput.frameworks.torch.compare import leaves_of, tensors_of

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
# Functions that return the numbers in a tensor to Python, so that code may depend on them.
_TELLING = ("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose")
_TELLING_METHODS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
_FILLING = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)  # of numbers in a list
# Functions whose result size depends on the numbers in tensors.
_COUNTING = {"nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "argwhere"}
_COUNTING |= {"nonzero_numpy", "_unique2", "unique_dim"}
_IS_RANDOM = torch.Tag.nondeterministic_seeded


class Unrecorded(Exception):
    """A run that does not determine what another run would do; the message is the reason."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, every operator that is called becomes a node of :attr:`graph`.

    In inference mode torch dispatches operators before decomposing them: ``linear`` and
    ``scaled_dot_product_attention``, not their parts.

    Parameters
    ----------
    held : dict
        The parameters and buffers that the graph refers to by name.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # so that the compiler, seconds of imports, is not loaded needlessly

    def __init__(self, held: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.tensors: dict[str, Tensor] = {}
        self.simple: dict[str, bool] = {}  # modules that map one tensor to one tensor
        self._token = object()  # distinguishes marks on tensors of this run from earlier ones
        self._held = {id(tensor): self._attribute(name, tensor) for name, tensor in held.items()}
        self._fed = set[fx.Node]()  # what depends on inputs,
        self._varies = set(self._held.values())  # and on weights or random numbers alone
        self._noted: list[fx.Node] = []  # by the number stored on a tensor
        self._refusal: Unrecorded | None = None
        self._stack: dict[str, tuple[str, type]] = {}
        self._calls = 0
        self._thread = get_ident()

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run a model once."""
        handles = []
        for path, module in model.named_modules():
            enter = functools.partial(self._enter, path)
            leave = functools.partial(self._leave, path)
            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        try:
            with torch.inference_mode():
                self._check_packing(tree_leaves((args, kwargs)), "it is called with")
                args, kwargs = tree_map(self._input, (args, kwargs))
                with _said_to_be_traced(), _Methods(self), self:
                    output = model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        self._check_packing(leaves_of(output), "it returns")
        if self._refusal is not None:  # the model's own code has caught it
            raise self._refusal
        self.graph.output(tuple(self._node_of(x) for x in tensors_of(output)))

    def _check_packing(self, values: Iterable[Any], what: str) -> None:
        """Raise if tensors might be hidden in a user's object."""
        for value in values:
            if not isinstance(value, _PLAIN):
                self._refuse(f"{what} a {type(value).__name__}")

    def _refuse(self, reason: str) -> NoReturn:
        self._refusal = self._refusal or Unrecorded(reason)
        raise self._refusal

    def _input(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.clone()  # the model may write to it
        node = self.graph.placeholder(f"input_{len(self._fed)}")
        self._fed.add(node)
        self._note(value, node)
        return value

    def _enter(self, path: str, module: nn.Module, args: Any) -> None:
        if get_ident() == self._thread:
            self._calls += 1
            self._stack[f"{path}@{self._calls}"] = (path, type(module))

    def _leave(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if get_ident() != self._thread:
            return
        while self._stack and self._stack.popitem()[1][0] != path:
            pass  # those that raised an error which the model has caught
        self.simple[path] = self.simple.get(path, True) and is_simple(module, args, kwargs, output)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_new = func._schema.name == "aten::lift_fresh"  # what torch.tensor() has made
        given, named = self._argument(args, is_new), self._argument(kwargs, is_new)
        node = self.graph.call_function(func, given, named)
        node.meta["nn_module_stack"] = dict(self._stack)
        node.meta["stack_trace"] = _line_of_the_user()
        sources = node.all_input_nodes
        is_fed = any(x in self._fed for x in sources)
        if is_fed:
            self._fed.add(node)
        elif any(x in self._varies for x in sources) or _IS_RANDOM in func.tags:
            self._varies.add(node)
        if (is_fed or node in self._varies) and (reason := _depends_on_numbers(func, args)):
            self._refuse(reason)
        # Code may cache what does not depend on inputs, and train with it later.
        with nullcontext() if is_fed else torch.inference_mode(False), torch.no_grad():
            result = func(*args, **kwargs)
        self._note_result(result, node)
        return result

    def look(self, func: Any, tensors: Any) -> None:
        """Raise if code is about to read, without an operator, numbers that differ in other runs."""
        for tensor in tensors_of(tensors):
            if self._node_of(tensor) in self._fed | self._varies:
                self._refuse(f"its code reads numbers in tensors ({func.__name__})")

    def _argument(self, value: Any, is_new: bool) -> Any:
        """Return an argument with nodes in the place of tensors."""
        if isinstance(value, Tensor):
            return self._node_of(value, is_new)
        if type(value) in (tuple, list):
            return type(value)(self._argument(x, is_new) for x in value)
        if type(value) is dict:
            return {key: self._argument(x, is_new) for key, x in value.items()}
        return value

    def _node_of(self, tensor: Tensor, is_new: bool = False) -> fx.Node:
        noted: tuple[object, int] | None = getattr(tensor, "_lilliput_node", None)
        if noted is not None and noted[0] is self._token:
            return self._noted[noted[1]]
        if id(tensor) not in self._held:  # not created by an operator: a number in the code
            if tensor.is_inference() and not is_new:
                self._refuse("it creates tensors from others without an operator")
            self._held[id(tensor)] = self._attribute(f"<constant {len(self.tensors)}>", tensor)
        return self._held[id(tensor)]

    def _attribute(self, name: str, tensor: Tensor) -> fx.Node:
        node = self.graph.get_attr(name)
        node.meta["val"] = _shape_only(tensor)
        self.tensors[name] = tensor  # which also prevents its id from being reused
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
                    for known in (self._fed, self._varies):
                        if node in known:
                            known.add(part)
                    self._note(item, part)

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["val"] = _shape_only(tensor)
        if id(tensor) in self._held:  # changed in place
            self._held[id(tensor)] = node
        else:
            tensor._lilliput_node = (self._token, len(self._noted))  # type: ignore[attr-defined]
            self._noted.append(node)


class _Methods(TorchFunctionMode):
    """Observes the functions that call no operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TELLING_METHODS:
            self.recorder.look(func, args[0])
        elif func in _FILLING:
            self.recorder.look(func, [x for x in args if isinstance(x, (list, tuple))])
        return func(*args, **(kwargs or {}))


@contextmanager
def _said_to_be_traced() -> Iterator[None]:
    """Answer like torch.export to code that checks: it then avoids branches that depend on numbers."""
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


def _depends_on_numbers(func: Any, args: Any) -> str:
    """Return why Python, or a size, will depend on the numbers in tensors, or ''."""
    name = func._schema.name.split("::")[-1]
    if name in _TELLING or torch.Tag.data_dependent_output in func.tags:
        return f"its code reads numbers in tensors ({name})"
    second = args[1] if len(args) > 1 else None
    if name == "index":
        masks = [x for x in second or () if x is not None]
        counts = any(x.dtype in (torch.bool, torch.uint8) for x in masks)
    elif name in ("repeat_interleave", "tensor_split"):
        counts = isinstance(second, Tensor) or len(args) == 1
    elif name == "one_hot":
        counts = second in (None, -1)
    else:
        counts = name in _COUNTING or torch.Tag.dynamic_output_shape in func.tags
        counts |= name == "where" and len(args) == 1
    return f"sizes depend on numbers in tensors ({name})" if counts else ""


def is_simple(module: nn.Module, args: Any, kwargs: Any, output: Any) -> bool:
    """Whether a module without children and buffers has just mapped one tensor to one tensor."""
    is_one = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
    return is_one and isinstance(output, Tensor) and not module._modules and not module._buffers


def _shape_only(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _line_of_the_user() -> str:
    """Return the line of the user's code that called an operator, as in a traceback."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code is not Recorder.run.__code__:
        file = frame.f_code.co_filename
        if file != __file__ and not is_code_of(file, torch):
            return f'File "{file}", line {frame.f_lineno}'
        frame = frame.f_back
    return ""
