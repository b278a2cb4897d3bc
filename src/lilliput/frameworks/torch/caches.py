"""Values that modules keep between runs besides their state: tables of parameters, keys and values.

Attention with learned position biases often computes a table of them once and keeps it while in
evaluation (LeViT, TinyViT, EfficientFormer). Such a table has the sizes and numbers of the model it was
computed from, and a graph that reads it no longer reads the parameter. So tables are recomputed
whenever a model is copied or changed, and graphs are captured along the branch that does not use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.modes import has_own_modes

_OFF: dict[Any, tuple[int, str, Any]] = {  # the argument for dropout, and its off value
    **{
        getattr(nn.functional, name): (2, "training", False)
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
    },
    nn.functional.scaled_dot_product_attention: (4, "dropout_p", 0.0),
}
_TOLERANCE = 1e-5  # between two runs in float32
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {
    "_parameters"
}  # children, hooks: no tables there


def drop_caches(model: nn.Module) -> None:
    """Make modules discard or recompute the tables computed from their parameters."""
    modules = list(model.modules())
    for module in modules:
        for name, value in vars(module).items():
            if "cache" in name and isinstance(value, dict):
                for key in [k for k, x in value.items() if any(True for _ in tensors_of(x))]:
                    del value[key]  # options, in a dict of that name, are never recomputed
    for module in modules:
        if has_own_modes(module) and not module.training and _has_cache(module):
            with _kept_modes(module):
                module.train(True)  # discards what is kept for evaluation
                module.train(False)  # recomputes it


def cached_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that a module keeps besides parameters and its state dict."""
    for name, value in vars(module).items():
        if name not in _OF_EVERY_MODULE:
            yield from tensors_in(value)
    for name, buffer in module._buffers.items():
        if buffer is not None and is_cache(module, name):
            yield buffer


def tensors_in(attribute: Any) -> list[Tensor]:
    """Return the tensors in an attribute of a module: itself, or the values of a dict."""
    if isinstance(attribute, Tensor):
        return [attribute]
    held = attribute.values() if type(attribute) is dict else ()
    return [x for x in held if type(x) is Tensor]


def is_cache(module: nn.Module, name: str) -> bool:
    """Whether a buffer may appear and disappear with the mode of its module."""
    return name in module._non_persistent_buffers_set and has_own_modes(module)


def _has_cache(module: nn.Module) -> bool:
    return next(cached_tensors(module), None) is not None


def has_tables(model: nn.Module) -> bool:
    """Whether modules compute tables from their parameters when switching to evaluation."""
    return any(has_own_modes(module) for module in model.modules())


def written_by_modes(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that modules may write to when they switch to evaluation, or back.

    Adapters, for instance, are often merged into the weight that they adapt.
    """
    return {
        f"{path}.{name}".lstrip("."): parameter
        for path, module in model.named_modules()
        if has_own_modes(module)
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


@contextmanager
def _kept_modes(module: nn.Module) -> Iterator[None]:
    modes = [(child, child.training) for child in module.modules()]
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode


def forget_states(model: nn.Module) -> None:
    """Stop a language model from returning keys and values for the next token.

    They are not outputs to compare, and torch cannot capture the object that contains them.
    """
    for config in _configs(model):
        config.use_cache = False


@contextmanager
def without_states(model: nn.Module) -> Iterator[None]:
    """As :func:`forget_states`, restored afterwards."""
    configs = _configs(model)
    forget_states(model)
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


def _configs(model: nn.Module) -> list[Any]:
    found = [getattr(module, "config", None) for module in model.modules()]
    return [x for x in found if getattr(x, "use_cache", None) is True]


def find_shortcuts(model: nn.Module, unread: Iterable[str]) -> list[nn.Module]:
    """Return the modules that may read a table where they read these parameters in training."""
    found: dict[int, nn.Module] = {}
    for name in unread:
        path = name.rpartition(".")[0]
        while path:
            module = model.get_submodule(path)
            if _has_cache(module):
                found[id(module)] = module
                break
            path = path.rpartition(".")[0]
        else:
            if _has_cache(model):
                found[id(model)] = model
    return list(found.values())


@contextmanager
def without_shortcuts(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let modules, but not their children, take their training branch."""
    listed = list(modules)
    before = [module.training for module in listed]
    for module in listed:
        module.training = True
    try:
        with _WithoutDropout():
            yield
    finally:
        for module, mode in zip(listed, before, strict=True):
            module.training = mode


class _WithoutDropout(TorchFunctionMode):
    """Runs dropout as in evaluation, whatever the mode of the calling module."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func in _OFF:
            at, name, off = _OFF[func]
            if len(args) > at:
                args = (*args[:at], off, *args[at + 1 :])
            else:
                given[name] = off
        return func(*args, **given)


@torch.no_grad()
def is_same_without(model: nn.Module, modules: list[nn.Module], args: Any, kwargs: Any) -> bool:
    """Whether a model has the same outputs when modules take their training branch."""
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = [x.clone() for x in tensors_of(model(*args, **kwargs))]
    try:
        with without_shortcuts(modules):
            received = list(tensors_of(model(*args, **kwargs)))
    except Exception:
        return False
    finally:
        for name, buffer in model.named_buffers():
            if name in state:
                buffer.copy_(state[name])
    return relative_error(expected, received) <= _TOLERANCE
