"""Outputs of modules in one run: of a student in training, and of its teacher on the same inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lilliput.config.layer import LayerInfo
from lilliput.errors import ConfigError, StageError, UnsupportedModelError
from lilliput.frameworks.features import MODEL, Run, is_dataclass, parts_of
from lilliput.frameworks.torch.discover import find_modules, unwrapped
from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.weights import is_sharded
from lilliput.frameworks.torch.wrapper import ModuleWrapper


def list_modules(model: nn.Module) -> list[LayerInfo]:
    """Return the model and every module in it, by path."""
    if isinstance(model, nn.DataParallel):
        raise UnsupportedModelError(
            "a DataParallel runs copies of the model in threads, whose layers cannot be compared with a "
            "teacher's; use DistributedDataParallel."
        )
    found = find_modules(model)
    root = replace(found[0], name=MODEL, types=found[0].types | {MODEL})
    return [root, *found[1:]]


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode without gradients; raise if compressors have changed the model."""
    plain = unwrapped(model)
    at_work = next((m for m in plain.modules() if isinstance(m, ModuleWrapper)), None)
    if at_work is not None:
        raise StageError(
            f"teacher: {type(at_work.compressor).__name__} is already attached to the model, so a copy of it "
            "is not the original. Create the distiller before attaching other compressors, or pass the "
            "original: Distiller(model, teacher=original)."
        )
    if any(is_sharded(p) for p in plain.parameters()):
        raise StageError(
            "teacher: the parameters are sharded, so the model cannot be copied; create the distiller "
            "before fully_shard(), or pass a teacher."
        )
    try:
        teacher = copy.deepcopy(plain)
    except Exception as error:
        raise UnsupportedModelError(
            f"teacher: the model cannot be copied ({type(error).__name__}: {error}); pass a teacher to the "
            "distiller."
        ) from error
    return teacher.eval().requires_grad_(False)


def shared_with(teacher: nn.Module, model: nn.Module) -> str | None:
    """Return the first parameter, buffer or module of a model that its teacher has, too."""
    held = {id(part) for _, part in _named_parts(unwrapped(teacher))}
    return next((name for name, part in _named_parts(unwrapped(model)) if id(part) in held), None)


def _named_parts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    yield from ((name or MODEL, module) for name, module in model.named_modules())


def move_like(teacher: nn.Module, model: nn.Module) -> None:
    """Move a teacher to the device of a model's parameters."""
    place, own = next(model.parameters(), None), next(teacher.parameters(), None)
    if place is not None and own is not None and own.device != place.device:
        teacher.to(place.device)


class Recorder:
    """Records the outputs of chosen modules while the whole model runs with gradients."""

    def __init__(self, task: Callable[[Run], None]) -> None:
        self.task = task
        self.run: Run | None = None
        self.pauses = 0  # while the engine runs the model itself

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start recording a run, if it has gradients."""
        self.run = None
        if torch.is_grad_enabled() and not self.pauses:
            stamps = [] if torch.compiler.is_compiling() else _stamps((args, kwargs))
            self.run = Run(args, kwargs, model.training, {}, stamps)

    def add(self, name: str, output: Any) -> None:
        """Record the output of a module; a copy, since the next layer may change it in place."""
        if self.run is not None:
            self.run.outputs.setdefault(name, []).append(_mapped(_cloned, output))

    def end(self, output: Any) -> None:
        """Pass on the completed run."""
        run, self.run = self.run, None
        if run is not None:
            run.result = _mapped(_itself, output)  # the caller may replace parts of a dict
            if not torch.compiler.is_compiling():
                run.result_stamps = _stamps(parts_of(run.result) or run.result)
            self.task(run)


class Watch:
    """A hook on one module for a recorder; copies of the module are not observed."""

    def __init__(self, recorder: Recorder | None, name: str = "", begins: bool = False) -> None:
        self.recorder, self.name, self.begins = recorder, name, begins

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Notify the recorder of the start of a run, or of the output of a module."""
        if self.recorder is None:
            return
        if self.begins:
            self.recorder.begin(module, args, rest[0])
            return
        if self.name == MODEL:
            self.recorder.end(rest[-1])
        else:
            self.recorder.add(self.name, rest[-1])

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return Watch(None)

    def __reduce__(self) -> Any:
        return Watch, (None,)


def record(model: nn.Module, wrappers: Sequence[Any], task: Callable[[Run], None]) -> list[Any]:
    """Hook the modules, and the model itself."""
    plain, recorder = unwrapped(model), Recorder(task)
    handles: list[Any] = [
        wrapper.module.register_forward_hook(Watch(recorder, wrapper.name))
        for wrapper in wrappers
        if wrapper.name != MODEL
    ]
    begin = Watch(recorder, MODEL, begins=True)
    # First of all hooks: the teacher gets the inputs of the caller, and may have the same hooks.
    handles.append(plain.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
    handles.append(plain.register_forward_hook(Watch(recorder, MODEL)))
    return handles


@contextmanager
def unrecorded(*models: nn.Module) -> Iterator[None]:
    """Record no runs of models: they are not those of a training loop."""
    hooks = [x for model in models for m in model.modules() for x in m._forward_pre_hooks.values()]
    recorders = [x.recorder for x in hooks if isinstance(x, Watch) and x.recorder is not None]
    for recorder in recorders:
        recorder.pauses += 1
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.pauses -= 1


def outputs_of(
    model: nn.Module, names: Sequence[str], run: Run, forward: Any = None
) -> dict[str, list[Any]]:
    """Run a model in eval mode without gradients, and restore its modes."""
    plain = unwrapped(model)
    found: dict[str, list[Any]] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: found.setdefault(name, []).append(
            _mapped(_cloned, output)
        )

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(calling_modules())
        for module in [module for module in plain.modules() if module.training]:
            module.training = False
            stack.callback(setattr, module, "training", True)
        for name in set(names) - {MODEL}:
            handle = _module(plain, name).register_forward_hook(keep(name))
            stack.callback(handle.remove)
        found[MODEL] = [plain(*run.args, **run.kwargs) if forward is None else forward(plain)]
    return found


def check_inputs(run: Run) -> None:
    """Raise if inputs were changed in place: the teacher would get other inputs than the student."""
    if _changed(run.stamps):
        raise StageError(
            "loss() would give the teacher different inputs than the model: a tensor of the batch was "
            "modified in place in the meantime (x.add_(), or a first layer with inplace=True); work on a "
            "copy of it."
        )


def check_result(run: Run, compared: Sequence[Tensor]) -> None:
    """Raise if a compared part of the model's output was changed in place."""
    changed = {id(tensor) for tensor in _changed(run.result_stamps)}
    if any(id(tensor) in changed for tensor in compared):
        raise StageError(
            "loss() would compare changed values with the teacher's: the output of the model was modified in "
            "place in the meantime (output.mul_(), or a later layer with inplace=True); call loss() before, "
            "or work on a copy of the output."
        )


def check_trainable(tensor: Tensor, name: str) -> None:
    """Raise if a tensor was computed without gradients."""
    if torch.is_grad_enabled() and not tensor.requires_grad:
        raise StageError(
            f"no gradient reaches the output of layer {name!r}: everything before it is frozen or detached, "
            "or it is recomputed by checkpoint(use_reentrant=True); use use_reentrant=False."
        )


def are_shares(tensor: Tensor, axis: int) -> bool:
    """Whether values are at least 0 and add up to 1 along an axis, up to rounding."""
    total = tensor.sum(axis)
    return bool((tensor >= 0).all()) and bool(((total - 1).abs() < 1e-2).all())


def learned(array: Any, like: Tensor) -> nn.Parameter:
    """Return an array as a parameter on the device of a tensor, in its precision."""
    return nn.Parameter(torch.from_numpy(array).to(like.device, like.dtype).contiguous())


def _module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ConfigError(f"the model has no layer {name!r}.") from error


def _mapped(change: Callable[[Any], Any], output: Any) -> Any:
    """Return a copy of an output with changed parts, also if it is a dataclass."""
    if not is_dataclass(output):
        return tree_map(change, output)
    copied = copy.copy(output)
    for name, part in parts_of(output).items():
        object.__setattr__(copied, name, tree_map(change, part))  # it may be frozen
    return copied


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _itself(value: Any) -> Any:
    return value


def _changed(stamps: Sequence[tuple[Tensor, int]]) -> list[Tensor]:
    return [tensor for tensor, version in stamps if tensor._version != version]


def _stamps(inputs: Any) -> list[tuple[Tensor, int]]:
    tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
    return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]
