"""Capture a model as a graph of tensor ops, without changing it."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.caches import (
    drop_caches,
    find_shortcuts,
    is_cache,
    is_same_without,
    without_shortcuts,
)
from lilliput.frameworks.torch.example_inputs import Inputs, fresh
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.record import Recorder, is_simple

_one_capture = RLock()
log = logging.getLogger("lilliput")


@dataclass(frozen=True, eq=False)
class Captured:
    """A model as a graph.

    Parameters
    ----------
    graph : torch.fx.Graph
        The operators that the model calls.
    tensors : dict
        All tensors that the graph reads, by name.
    names : dict
        From the name of a parameter or buffer to its first name; tied ones have several.
    parameters : dict
        Number of entries of each parameter of the model, by its first name.
    simple : set of str
        Paths of leaf modules without buffers that take one tensor and return one.
    call : tuple
        The arguments of the model.
    """

    graph: fx.Graph
    tensors: dict[str, Tensor]
    names: dict[str, str]
    parameters: dict[str, int]
    simple: frozenset[str]
    call: Inputs

    def unread(self) -> list[str]:
        """Return the model's parameters that the graph does not read."""
        read = {self.names.get(name) for name in self.tensors}
        return [name for name in self.parameters if name not in read]


@dataclass(frozen=True, eq=False)
class Exported(Captured):
    """A graph that can run instead of the model.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The graph, with the model's tensors under their own names.
    ranges : dict
        The ranges of dynamic sizes.
    """

    module: fx.GraphModule
    ranges: dict[Any, Any]


AnyCaptured = TypeVar("AnyCaptured", bound=Captured)


def read(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Return the graph of a plain model in eval mode for analysis; the model is only read.

    One run is recorded. If another run might take another branch, torch.export is used.
    """
    try:
        with quiet():
            return _by_training_code(model, args, kwargs, lambda: _record(model, args, kwargs))
    except Exception as error:  # including those of the model under a recorder
        log.debug("speedup: not recorded: %r", error)
        return capture(model, args, kwargs)
    finally:
        drop_caches(model)  # created in inference mode


def capture(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], any_size: bool = False
) -> Exported:
    """Return the graph of a plain model in eval mode for execution; the model is only read.

    With ``any_size``, batches and lengths of sequences are dynamic wherever the code allows.
    """
    simple = _try(model, *fresh((args, kwargs)))
    export = functools.partial(_export, model, args, kwargs, any_size, simple)
    return _by_training_code(model, args, kwargs, export)


def _by_training_code(
    model: nn.Module, args: Any, kwargs: Any, take: Callable[[], AnyCaptured]
) -> AnyCaptured:
    """Return a graph; capture it again without the cached tables that replace parameters in evaluation."""
    captured = take()
    shortcuts = find_shortcuts(model, captured.unread())
    if shortcuts and is_same_without(model, shortcuts, args, kwargs):
        with without_shortcuts(shortcuts):
            return take()
    return captured


def _record(model: nn.Module, args: Any, kwargs: Any) -> Captured:
    names = _first_names(model)
    held = {name: tensor for name, tensor in _named_tensors(model) if names.get(name) == name}
    recorder = Recorder(held)
    recorder.run(model, args, kwargs)
    graph = recorder.graph
    _drop_unused(graph)
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    tensors = {name: tensor for name, tensor in recorder.tensors.items() if name in read}
    simple = frozenset(path for path, found in recorder.simple.items() if found)
    sizes = _parameter_sizes(model, names)
    return Captured(graph, tensors, names, sizes, simple, (args, kwargs))


def _export(
    model: nn.Module, args: Any, kwargs: Any, any_size: bool, simple: frozenset[str]
) -> Exported:
    with quiet(), torch.no_grad():
        try:
            open_ = _open_sizes(model, args, kwargs) if any_size else None
            program = torch.export.export(model, args, kwargs, dynamic_shapes=open_, strict=False)
            module: Any = program.module()
        except Exception as error:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be captured by torch.export: {_first_line(error)}"
            ) from error
    _drop_guards(module)
    targets = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    tensors = {x: found for x in targets if isinstance(found := attrgetter(x)(module), Tensor)}
    names = _first_names(model)
    sizes, ranges = _parameter_sizes(model, names), program.range_constraints
    return Exported(module.graph, tensors, names, sizes, simple, (args, kwargs), module, ranges)


def _parameter_sizes(model: nn.Module, names: dict[str, str]) -> dict[str, int]:
    found = model.named_parameters(remove_duplicate=False)
    return {names[name]: parameter.numel() for name, parameter in found if name in names}


def forget_values(captured: Captured) -> None:
    """Free the values of a captured copy of a model; only its shapes are used later."""
    tensors = captured.tensors.values()
    shapes = {id(tensor): tensor.to("meta") for tensor in tensors}
    if isinstance(captured, Exported):
        captured.module.to("meta")
    for name, tensor in list(captured.tensors.items()):
        meta = shapes[id(tensor)]
        is_parameter = isinstance(tensor, nn.Parameter)
        captured.tensors[name] = nn.Parameter(meta, tensor.requires_grad) if is_parameter else meta
        if name in captured.names:  # others are the user's: globals, and attributes of classes
            # The module they come from may stay alive in a reference cycle.
            tensor.data = tensor.data.new_empty(0)


def _open_sizes(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return which sizes are dynamic: batches, and lengths of sequences; more would take minutes."""

    def spec(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.dim():
            return None
        dims = (0, 1) if x.dim() in (2, 3) else (0,)
        return dict.fromkeys(dims, torch.export.Dim.AUTO)

    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    given = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if name in given and parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name)
    return {name: tree_map(spec, value) for name, value in given.items()}


def _try(model: nn.Module, args: Any, kwargs: Any) -> frozenset[str]:
    """Run a model, and return its leaf modules that map one tensor to one tensor."""
    simple: dict[str, bool] = {}

    def watch(name: str) -> Callable[..., None]:
        def note(module: nn.Module, given: Any, named: Any, output: Any) -> None:
            simple[name] = simple.get(name, True) and is_simple(module, given, named, output)

        return note

    handles = [
        module.register_forward_hook(watch(name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        shapes = [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run on the example inputs (shapes {shapes}): "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return frozenset(name for name, found in simple.items() if found)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of capturing, and disable torch's fused attention path.

    One thread at a time: torch's tracers, like warnings and log levels, are global.
    """
    with _one_capture, calling_modules(), warnings.catch_warnings():
        level = logging.getLogger("torch").level
        logging.getLogger("torch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)


def _first_names(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    names = {}
    for name, tensor in _named_tensors(model):
        owner, _, leaf = name.rpartition(".")
        if is_cache(model.get_submodule(owner), leaf):
            continue  # recomputed whenever the parameters change
        names[name] = first.setdefault(id(tensor), name)
    return names


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _drop_guards(module: fx.GraphModule) -> None:
    """Remove checks of shapes and types, which a smaller model would fail."""
    for node in list(module.graph.nodes):
        is_guard = node.op == "call_module" and "guard" in str(node.target)
        if is_guard or "_assert_tensor_metadata" in str(node.target):
            module.graph.erase_node(node)
    _drop_unused(module.graph)
    module.recompile()


def _drop_unused(graph: fx.Graph) -> None:
    kept = _unused_but_run(graph)
    graph.eliminate_dead_code(lambda node: node.is_impure() or node in kept)


def _unused_but_run(graph: fx.Graph) -> set[fx.Node]:
    """Return ops without effect on the output that read parameters of their own.

    The model's code still runs them, so their layers have to be cut, too. Other ops without effect are
    dropped, so that channels that only they read can be cut.
    """
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.is_impure() or any(user in live for user in node.users):
            live.add(node)
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" and node not in live:
            found |= set(node.users)
        elif node in found:
            found |= node.users.keys() - live
    return found


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
