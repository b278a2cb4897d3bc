"""Capture a model as a graph of tensor ops, without changing it."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    cached_tensors,
    drop_caches,
    find_shortcuts,
    forget_states,
    is_cache,
    is_same_without,
    without_shortcuts,
    written_by_modes,
)
from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.copies import copy_tree
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.record import Recorder, is_simple
from lilliput.frameworks.torch.weights import is_zero_at

_one_capture = RLock()
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
_PRECISE = (torch.float32, torch.float64)


log = logging.getLogger("lilliput")


@dataclass(frozen=True, eq=False)
class Call:
    """Example inputs with both positional and named arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


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


def fresh(inputs: Any) -> Any:
    """Return copies of inputs, for a model that may write to them."""
    if isinstance(inputs, Call):
        return Call(fresh(inputs.args), fresh(inputs.kwargs))
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)


def as_inputs(example_inputs: Any) -> Inputs:
    """Return example inputs as arguments: a tensor, a tuple of arguments, or a dict of named ones."""
    if isinstance(example_inputs, Call):
        return example_inputs.args, example_inputs.kwargs
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)) and len(example_inputs):
        return tuple(example_inputs), {}
    raise UnsupportedModelError(
        f"example_inputs: received {type(example_inputs).__name__}, expected the model's arguments: a "
        "tensor, a tuple of arguments, or a dict of named arguments."
    )


def plain_copy(model: nn.Module, share: bool = False) -> nn.Module:
    """Return a copy of a model in eval mode, without compressors.

    With ``share``, parameters share the memory of the model's own, unless masks have to be applied
    to them, or switching to evaluation may write to them: the copy must not be written to.
    """
    from lilliput.frameworks.torch.backend import strip
    from lilliput.frameworks.torch.discover import unwrapped

    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a torch.nn.Module."
        )
    own = unwrapped(model)
    memo = _shared_masks(own)
    if share:
        memo |= _shared_all(own, _as_masked(own))
    twin = strip(_copy(own, memo))
    twin.eval()  # a user's own train() may return nothing
    drop_caches(twin)
    return twin


def _as_masked(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that the model uses unchanged: already zero wherever a mask is."""
    from lilliput.frameworks.torch.sidecar import is_computed, mask_of

    masked = set()
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            mask = mask_of(module, leaf)
            is_other = mask is not None and not is_zero_at(parameter.detach(), mask)
            if is_other or is_computed(module, leaf):
                masked.add(id(parameter))
    yield from (p for p in model.parameters() if id(p) not in masked)


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model, without the values that it keeps between runs."""
    return _copy(model, {})


def shared_copy(model: nn.Module) -> nn.Module:
    """Return a copy with parameters in the same memory: replace them, but do not write to them.

    Those that switching to evaluation may write to are copied.
    """
    twin = _copy(model, _shared_masks(model) | _shared_all(model, model.parameters()))
    own = {id(p) for p in model.parameters()}
    kept = [name for name, p in twin.named_parameters() if id(p) in own]
    if kept:
        raise UnsupportedModelError(
            f"a copy of {type(model).__name__} still holds the model's own {', '.join(kept[:4])}, so nothing "
            "can be tried on it; remove the __deepcopy__ that returns the same module."
        )
    return twin


def _shared_all(model: nn.Module, parameters: Iterable[nn.Parameter]) -> dict[int, Any]:
    """Return parameters in the same memory, by identity, but for those that a switch of mode may change."""
    written = {id(p) for p in written_by_modes(model).values()}
    return {id(p): _shared(p) for p in parameters if id(p) not in written}


def check_modes(model: nn.Module) -> None:
    """Raise if a model changes its weights when it switches to evaluation, where everything is compared."""
    if not any(x.training for x in model.modules()) or not written_by_modes(model):
        return
    twin = shared_copy(model)
    before = {name: p.detach().clone() for name, p in written_by_modes(twin).items()}
    twin.eval()
    for name, parameter in written_by_modes(twin).items():
        if not torch.equal(parameter, before[name]):
            raise UnsupportedModelError(
                f"{type(model).__name__} changes {name!r} when it switches to evaluation, as layers do that "
                "merge other weights into it, but is in training mode; call model.eval() first."
            )


def check_copies(model: nn.Module, example_inputs: Any) -> None:
    """Raise if a model's outputs differ without the tables that it keeps, as in its copies.

    Everything compared later is a copy; here it is verified that copies compute the same as the model.
    """
    cached = [t for module in model.modules() for t in cached_tensors(module)]
    if not cached:
        return
    shared = _shared_all(model, model.parameters())
    twin = copy.deepcopy(model, _shared_masks(model) | shared | _computed(cached))
    forget_states(twin)
    given = as_inputs(example_inputs)
    with quiet(), torch.no_grad():
        try:
            wanted, again = (_outputs(twin.eval(), given) for _ in range(2))
        except Exception:  # for example tables of another size, which must be dropped
            return
        received = _outputs(shared_copy(model).eval(), given)
    error, limit = relative_error(wanted, received), 1e-3
    if not all(x.dtype in _PRECISE for x in wanted):
        limit = 0.05
    if not error <= limit and relative_error(wanted, again) <= limit:  # its outputs are not random
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps tensors outside its state, in dicts or attributes called caches, "
            f"and its outputs change without them (by {error:.1e} of the largest). They are assumed to be "
            "tables that can be recomputed. Register tensors that must be kept as buffers."
        )


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    args, kwargs = fresh(inputs)
    return [x.clone() for x in tensors_of(model(*args, **kwargs))]


def whole_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a model with everything that it keeps; ``memo`` is that of copy.deepcopy."""
    cached = [t for module in model.modules() for t in cached_tensors(module)]
    try:
        twin: nn.Module = copy_tree(model, (memo or {}) | _computed(cached))
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied, which its analysis needs: {type(error).__name__}: "
            f"{error}. Locks, generators and open files must not be attributes of modules."
        ) from error
    return twin


def _copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    twin = whole_copy(model, memo)
    drop_caches(twin)
    forget_states(twin)
    return twin


def _computed(cached: list[Tensor]) -> dict[int, Any]:
    """Return copies of computed tensors, which deepcopy does not support."""
    return {id(t): t.detach().clone() for t in cached if not t.is_leaf}


def _shared(parameter: nn.Parameter) -> nn.Parameter:
    if type(parameter) is not nn.Parameter:
        return copy.deepcopy(parameter)
    return nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)


def _shared_masks(model: nn.Module) -> dict[int, Any]:
    """Return the masks of pruners for a copy that only reads them, since they are as large as the weights."""
    from lilliput.frameworks.torch.wrapper import PrunerModuleWrapper

    wrappers = [m for m in model.modules() if isinstance(m, PrunerModuleWrapper)]
    masks = [m for w in wrappers for m in (w.weight_mask, w.bias_mask) if m is not None]
    return {id(mask): mask.detach() for mask in masks}


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
    """Return a graph, captured again if tables are read where parameters are read in training."""
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

    The model's code still runs them, so their layers have to be cut, too. Other ops without
    effect are dropped: what only they read need not be kept whole.
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
