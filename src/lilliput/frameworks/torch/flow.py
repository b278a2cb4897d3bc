"""Record the flow of tensors through a torch model by running it once."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from lilliput.frameworks.torch.batches import call
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.modes import evaluating
from lilliput.graph.flow import Flow, ModuleCall, Operation

_KINDS = {
    "relu": "clip",
    "hardtanh": "clip",
    "clamp": "clip",
    "clamp_min": "clip",
    "add": "add",
    "max_pool2d_with_indices": "same",
    "max_pool3d_with_indices": "same",
    "alias": "same",
    "clone": "same",
    "detach": "same",
    "expand": "same",
    "permute": "same",
    "reshape": "same",
    "select": "same",
    "slice": "same",
    "split": "same",
    "split_with_sizes": "same",
    "squeeze": "same",
    "t": "same",
    "transpose": "same",
    "unbind": "same",
    "unsqueeze": "same",
    "view": "same",
    "_unsafe_view": "same",
}


@torch.no_grad()
def record_flow(model: nn.Module, run: Callable[[], Any]) -> Flow:
    """Run a model in eval mode, and return which operations and modules produce and read which values."""
    recorder = _Recorder(model)
    handles = [
        register_module_forward_pre_hook(recorder.enter),
        register_module_forward_hook(recorder.leave, always_call=True),
    ]
    try:
        with evaluating(model), calling_modules(), recorder:
            run()
    finally:
        for handle in handles:
            handle.remove()
    return Flow(tuple(recorder.operations), tuple(recorder.calls))


def flow_of_batch(model: nn.Module, batch: Any, forward: Callable[..., Any] | None) -> Flow:
    """Run the first rows of a batch in eval mode, or the whole batch if the model requires it."""
    run = forward or call
    try:
        return record_flow(unwrapped(model), lambda: run(model, shorten(batch)))
    except Exception:
        return record_flow(unwrapped(model), lambda: run(model, batch))


def shorten(batch: Any, rows: int = 2) -> Any:
    """Return a batch with its first rows only, if all its tensors have the same number of rows."""
    items, layout = tree_flatten(batch)
    lengths = {x.shape[0] if x.dim() else 0 for x in items if isinstance(x, Tensor)}
    if len(lengths) != 1 or lengths <= set(range(rows + 1)):
        return batch
    return tree_unflatten([x[:rows] if isinstance(x, Tensor) else x for x in items], layout)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # so that the compiler, seconds of imports, is not loaded needlessly

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paths = {module: path for path, module in model.named_modules()}
        self.thread = get_ident()  # ignores modules that run in other threads
        self.stack: list[str] = []
        self.entered: list[tuple[int, ...]] = []
        self.operations: list[Operation] = []
        self.calls: list[ModuleCall] = []
        self.values: dict[int, int] = {}
        self.count = 0
        self.alive: list[Any] = []  # so that no id is reused

    def value_of(self, tensor: Tensor) -> int:
        found = self.values.get(id(tensor))
        return self.new(tensor) if found is None else found

    def new(self, tensor: Tensor) -> int:
        self.count += 1
        self.values[id(tensor)] = self.count
        self.alive.append(tensor)
        return self.count

    def numbers(self, content: Any) -> tuple[int, ...]:
        tensors = [x for x in tree_flatten(content)[0] if isinstance(x, Tensor)]
        return tuple(self.value_of(x) for x in tensors if x.is_floating_point())

    def enter(self, module: nn.Module, args: Any) -> None:
        if get_ident() != self.thread:
            return
        self.stack.append(self.paths.get(module, ""))
        self.entered.append(self.numbers(args))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if get_ident() != self.thread:
            return
        path, inputs = self.stack.pop(), self.entered.pop()
        if module in self.paths:
            self.calls.append(ModuleCall(path, inputs, self.numbers(output)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = self.numbers((args, kwargs))
        output = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_flatten(output)[0] if isinstance(x, Tensor)]
        # An in-place operation returns a known tensor, but it is a new value.
        outputs = tuple(self.new(x) for x in tensors if x.is_floating_point())
        name = func._overloadpacket._qualified_op_name.split("::")[1].rstrip("_")
        # A norm that uses batch statistics even in evaluation cannot be folded into a layer.
        is_norm = "batch_norm" in name and not any(x is True for x in args)
        kind = "norm" if is_norm else _KINDS.get(name, "")
        bounds = _bounds(name, args[1:], kwargs or {}) if kind == "clip" else None
        self.operations.append(Operation(kind, inputs, outputs, tuple(self.stack), bounds))
        return output


def _bounds(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[float, float] | None:
    """Return the bounds within which a clip keeps values unchanged; None if they are tensors."""
    if name == "relu":
        return 0.0, math.inf
    names, default = ("min_val", "max_val"), (-1.0, 1.0)
    if name != "hardtanh":
        names, default = ("min", "max"), (-math.inf, math.inf)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = [given.get(key, end) for key, end in zip(names, default, strict=True)]
    low, high = (end if x is None else x for x, end in zip(found, default, strict=True))
    is_plain = all(isinstance(x, (int, float)) for x in (low, high))
    return (float(low), float(high)) if is_plain else None
