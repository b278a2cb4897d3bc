"""Run a model in double precision with only the running part in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from lilliput.frameworks.torch.compare import tensors_of
from lilliput.frameworks.torch.sidecar import is_ours
from lilliput.frameworks.torch.weights import unshadowed

# (name of a tensor, some of its rows, index of the first one) -> the rows to use.
Load = Callable[[str, Tensor, int], Tensor]
_SHARE = 16  # a module is loaded as a whole if it has at most this fraction of all entries,
_SMALL = 250_000  # or at most this many


class MixedPrecisionError(Exception):
    """A part of the model did not compute in double precision."""


def keep(name: str, tensor: Tensor, first: int = 0) -> Tensor:
    """Use a tensor as it is."""
    return tensor


def load_in_parts(model: nn.Module, load: Load) -> nn.Module:
    """Let each module of a model have its tensors in double precision while it runs; return it.

    Tensors are replaced during a call, so the model should be a copy; their memory may be
    shared, since it is never written to. If a module reads tensors of another one that is not
    running, torch raises an error about their types.
    """
    named = [(name, x) for name, x in reversed(_tensors(model)) if not _is_mask(name)]
    names = {id(tensor): name for name, tensor in named}
    total = sum(tensor.numel() for _, tensor in named)
    limit, loaded = max(total // _SHARE, _SMALL), set[int]()
    for module in list(model.modules()):
        inside = _tensors(module)
        if sum(t.numel() for _, t in inside) > limit and not isinstance(module, fx.GraphModule):
            inside = _tensors(module, recurse=False)
            if _is_linear(module):
                large: Any = module._parameters["weight"]
                inside = [(name, t) for name, t in inside if t is not large]
                rows = max(1, limit // large.shape[1])
                module.forward = functools.partial(
                    _run_by_rows, module, names[id(large)], load, loaded, rows
                )
        own = [(names[id(t)], t) for _, t in inside if id(t) in names]
        part = _Part(own, load, loaded)
        if own:
            module.register_forward_pre_hook(part.enter, prepend=True)
        module.register_forward_hook(part.leave, always_call=True)
    return model


def run_contiguous(model: nn.Module) -> None:
    """Let depthwise convolutions run on contiguous images: torch is ten times slower on other doubles."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1:
            run: Any = module._conv_forward
            is_torchs = getattr(run, "__func__", None) is nn.Conv2d._conv_forward
            if is_torchs:
                module._conv_forward = functools.partial(_run_contiguous, run)  # type: ignore[method-assign]


def _run_contiguous(run: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    last = torch.channels_last
    if input.dim() != 4 or input.is_contiguous() or not input.is_contiguous(memory_format=last):
        return run(input, weight, bias)  # type: ignore[no-any-return]
    return run(input.contiguous(), weight, bias).contiguous(memory_format=last)  # type: ignore[no-any-return]


def _is_linear(module: nn.Module) -> bool:
    """Whether a module computes the same as nn.Linear; the instance may have its own forward."""
    is_plain = unshadowed(type(module)) is nn.Linear and "forward" not in vars(module)
    return is_plain and "weight" in module._parameters


def _run_by_rows(
    module: Any,
    name: str,
    load: Load,
    loaded: set[int],
    rows: int,
    input: Tensor,  # so called by those who pass it by its name
) -> Tensor:
    """Do what nn.Linear does, with a part of its weight in memory at a time."""
    if id(module._parameters["weight"]) in loaded:  # as a part of a graph that calls it
        return nn.functional.linear(input, module.weight, module.bias)
    parts = [
        nn.functional.linear(input, load(name, part.to(torch.float64, copy=True), i * rows))
        for i, part in enumerate(torch.split(module.weight.detach(), rows))
    ]
    output = torch.cat(parts, -1)
    return output if module.bias is None else output + module.bias


class _Part:
    """The tensors that a module loads when it is called."""

    def __init__(self, tensors: list[tuple[str, Tensor]], load: Load, loaded: set[int]) -> None:
        self.tensors, self.load, self.loaded = tensors, load, loaded
        self.before: list[list[tuple[Tensor, Tensor]]] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        """Load the tensors that are not loaded."""
        own = [(name, t) for name, t in self.tensors if id(t) not in self.loaded]
        self.before.append([(t, t.data) for _, t in own])
        self.loaded |= {id(t) for _, t in own}
        for name, tensor in own:
            tensor.data = self.load(name, tensor.data.to(torch.float64, copy=True), 0)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Restore the previous tensors."""
        for tensor, before in self.before.pop() if self.before else ():
            tensor.data = before
            self.loaded.discard(id(tensor))
        if any(x.is_floating_point() and x.dtype != torch.float64 for x in tensors_of(output)):
            raise MixedPrecisionError(type(module).__name__)


def _tensors(module: nn.Module, recurse: bool = True) -> list[tuple[str, Tensor]]:
    found = [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]
    return [(name, tensor) for name, tensor in found if tensor.is_floating_point()]


def _is_mask(name: str) -> bool:
    """Whether a tensor is a mask: its zeros and ones are exact in any precision."""
    return name.endswith(("weight_mask", "bias_mask")) and is_ours(name)
