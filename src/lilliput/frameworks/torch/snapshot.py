"""Weights, multiplications and times of the layers of a torch model, observed without changes.

Multiplications come from ``torch.utils.flop_counter``, module by module. Those that it does not see are
computed by formulas (recurrent layers, ``Bilinear``), or made visible by running attention unfused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.torch.modes import evaluating as evaluating
from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar
from lilliput.frameworks.torch.statistics import run
from lilliput.frameworks.torch.weights import plain_type, whole
from lilliput.frameworks.work import Array, Work, batch_of
from lilliput.frameworks.wrapping import marking, step_aside
from lilliput.graph.macs import recurrent_macs

_TIMED_RUNS = 5
_BY_FORMULA = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)


def name_of(owner: Any) -> str:
    """Return the name of a module."""
    return owner.path or plain_type(type(owner.module)).__name__


def type_of(owner: Any, kind: str) -> str:
    """Return the kind of layer of a module."""
    return kind


def paths(model: nn.Module) -> list[str]:
    """Return the names of all modules, in the model's order."""
    root = unwrapped(model)
    return [path or plain_type(type(root)).__name__ for path, _ in root.named_modules()]


def value(module: nn.Module, name: str) -> Array:
    """Return a parameter as the module uses it."""
    with torch.no_grad():
        tensor = whole(getattr(module, name)).detach().cpu()
        array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def quantizer_of(module: nn.Module, name: str) -> Any:
    """Return the wrapper of the quantizer of a parameter, or None."""
    sidecar: Any = module._modules.get(SIDECAR)
    chain = sidecar.chains.get(name, ()) if sidecar is not None else ()
    found = (sidecar._modules[key] for key, role in chain if role == "weight")
    return next((wrapper for wrapper in found if wrapper.order == 1), None)


def watch(
    model: nn.Module, example_inputs: Any, timing: bool
) -> tuple[int | None, dict[int, Work]]:
    """Run a model, and return the batch size and the work of each module by its identity."""
    if example_inputs is None:
        return None, {}
    root = unwrapped(model)
    args, kwargs = as_inputs(example_inputs)
    works = {
        id(module): Work(path or plain_type(type(root)).__name__, plain_type(type(module)).__name__)
        for path, module in _modules(root)
    }

    def forward() -> None:
        # Quantizers are disabled, because they would update their ranges.
        with marking(step_aside, quantizers_in(root)):
            run(root, [None], lambda model, _: model(*args, **kwargs))

    with _unchanged(root):
        counter = FlopCounterMode(display=False)
        with _unfused(), counter, _hooked(root, works, counter.get_total_flops, _note_macs):
            forward()
        if timing:
            forward()
            for _ in range(_TIMED_RUNS):
                with _hooked(root, works, time.perf_counter, _note_seconds):
                    forward()
    return examples_in(root, example_inputs), works


def examples_in(model: nn.Module, inputs: Any) -> int:
    """Return the number of examples in inputs: the first axis, or the second if the first one is time.

    It is time if a recurrent layer without ``batch_first`` runs along it.

    Examples
    --------
    >>> examples_in(nn.LSTM(3, 4), torch.zeros(5, 2, 3))
    2
    """
    args, kwargs = as_inputs(inputs)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    first = next((tuple(x.shape) for x in tensors if x.dim() > 1), None)
    layers = [x for x in model.modules() if isinstance(x, nn.RNNBase)]
    if first is None or not layers:
        return batch_of(tensors)
    seen: list[tuple[int, ...]] = []

    def note(module: nn.Module, given: Any, named: Any) -> None:
        x = next(iter((*given, *named.values())), None)
        if isinstance(x, Tensor) and (x.dim() == 2 or not module.batch_first):
            seen.append(tuple(x.shape))

    with ExitStack() as handles:
        for layer in layers:
            hook = layer.register_forward_pre_hook(note, with_kwargs=True)
            handles.callback(hook.remove)
        with _unchanged(model), marking(step_aside, quantizers_in(model)):
            run(model, [None], lambda model, _: model(*args, **kwargs))
    if any(len(shape) == 3 and shape[:2] == first[:2] for shape in seen):
        return int(first[1])
    return 1 if first in seen else int(first[0])  # a single sequence of two dimensions


Note = Callable[[Work, nn.Module, Any, Any, float], None]


@contextmanager
def _hooked(
    root: nn.Module, works: dict[int, Work], meter: Callable[[], float], note: Note
) -> Iterator[None]:
    """Read a meter around each module's forward, and record the module's own part."""
    stack: list[list[float]] = []  # the meter at the start, and the part of inner modules
    totals: dict[int, list[Any]] = {}

    def before(module: nn.Module, args: Any) -> None:
        stack.append([meter(), 0.0])

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        start, inside = stack.pop()
        spent = meter() - start
        if stack:
            stack[-1][1] += spent
        totals.setdefault(id(module), []).append(
            (module, (*args, *kwargs.values()), output, spent - inside)
        )

    with ExitStack() as handles:
        for _, module in _modules(root):
            for handle in (
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, with_kwargs=True),
            ):
                handles.callback(handle.remove)
        yield
    for key, calls in totals.items():
        _note_all(works[key], calls, note)


def _note_all(work: Work, calls: list[Any], note: Note) -> None:
    """Record all calls of one module in one forward pass of the model."""
    before = len(work.seconds)
    for module, args, output, own in calls:
        note(work, module, args, output, own)
    work.seconds[before:] = [sum(work.seconds[before:])] if len(work.seconds) > before else []


def _note_macs(work: Work, module: nn.Module, args: Any, output: Any, flops: float) -> None:
    by_formula = isinstance(module, _BY_FORMULA) and bool(args)
    work.macs += _formula(module, args[0], output) if by_formula else int(flops) // 2


def _note_seconds(work: Work, module: nn.Module, args: Any, output: Any, own: float) -> None:
    work.seconds.append(own)


def _formula(module: nn.Module, given: Any, output: Any) -> int:
    """Return the multiplications of layers that the counter does not see: every matrix, every step."""
    if isinstance(module, nn.Bilinear):
        return int(output.numel() // module.out_features * module.weight.numel())
    tensor = given.data if isinstance(given, nn.utils.rnn.PackedSequence) else given
    weights = (x for x in module._parameters.values() if x is not None and x.dim() == 2)
    return recurrent_macs(prod(tensor.shape[:-1]), (x.numel() for x in weights))


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the user's own modules."""
    hidden: tuple[str, ...] = ()
    for path, module in root.named_modules():
        if isinstance(module, Sidecar):
            hidden += (f"{path}.",)
        elif not f"{path}.".startswith(hidden or ("\0",)):
            yield path, module


@contextmanager
def _unfused() -> Iterator[None]:
    """Make attention run as separate products, which can be counted."""
    with calling_modules(), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def _unchanged(root: nn.Module) -> Iterator[None]:
    """Restore buffers and the random generator."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in root.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)
