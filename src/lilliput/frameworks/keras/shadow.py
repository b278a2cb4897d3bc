"""Shadow classes: subclasses of layer classes on which attributes return compressed values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from keras import ops
from keras.src.saving import object_registration

from lilliput.frameworks.keras.computed import ComputedVariable
from lilliput.frameworks.keras.scopes import full_precision, is_calling, is_symbolic, is_tracing
from lilliput.frameworks.keras.sidecar import sidecar_of
from lilliput.frameworks.keras.variables import raw, tensor_of, track, untrack

Tensor = Any


def unshadowed(cls: type) -> type:
    """Return the class that a shadow class was made from, or the class itself."""
    base: type = cls.__dict__.get("_lilliput_base", cls)
    return base


@cache
def shadow_class(base: Any, names: tuple[str, ...]) -> type:
    """Return the subclass of ``base`` on which ``names`` are compressed attributes."""
    members: dict[str, Any] = {name: Shadow(base, name) for name in names}
    members |= {
        "call": _make_call(base),
        "save_own_variables": _without_ours(base.save_own_variables),
        "load_own_variables": _without_ours(base.load_own_variables),
        "weights": property(_plain_weights),
    }
    return subclass_like(base, members)


def subclass_like(base: Any, members: dict[str, Any]) -> type:
    """Return a subclass that Keras treats as its base, in files and when it creates new layers."""
    own = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "from_config": classmethod(lambda cls, *args, **kwargs: base.from_config(*args, **kwargs)),
        "_lilliput_base": base,
    }
    cls = type(base.__name__, (base,), {**members, **own})
    names = object_registration.GLOBAL_CUSTOM_NAMES
    if base in names:
        names[cls] = names[base]
    return cls


class Shadow:
    """An attribute that returns the compressed value of a variable."""

    def __init__(self, base: type, name: str) -> None:
        self.name = name
        self.plain = getattr(base, name, None)  # the property of the class, if any

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        if layer is None:
            return self
        sidecar = sidecar_of(layer)
        variable = raw(layer, self.name)
        if sidecar is None or sidecar.is_bare or variable is None or is_symbolic():
            return self._raw(layer)

        def compute() -> Tensor:
            with full_precision() as dtype:
                value = sidecar.transform(self.name, tensor_of(variable))
            return value if dtype is None else ops.cast(value, dtype)

        return compute() if is_calling() or is_tracing() else ComputedVariable(variable, compute)

    def _raw(self, layer: Any) -> Any:
        if isinstance(self.plain, property) and self.plain.fget is not None:
            return self.plain.fget(layer)
        if self.name in vars(layer):
            return vars(layer)[self.name]
        raise AttributeError(f"{type(layer).__name__} has no attribute {self.name!r}")

    def __set__(self, layer: Any, value: Any) -> None:
        if isinstance(self.plain, property):
            if self.plain.fset is None:
                raise AttributeError(f"{self.name!r} of {type(layer).__name__} cannot be set")
            self.plain.fset(layer, value)
        else:
            vars(layer)[self.name] = value


def _make_call(base: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        sidecar = sidecar_of(self)
        if sidecar is None or is_symbolic():
            return base.call(self, *args, **kwargs)
        narrow = sidecar.narrow
        plain = base.call if narrow is None else narrow.call
        return sidecar.run(lambda *a, **k: plain(self, *a, **k), args, kwargs)

    call.__signature__ = inspect.signature(base.call)  # type: ignore[attr-defined]
    return call


def _plain_weights(self: Any) -> list[Any]:
    """Return the variables of ``get_weights`` and ``set_weights``, without ours."""
    hidden = {id(variable) for variable in vars(self).get("_lilliput_variables", ())}
    return [x for x in super(type(self), self).weights if id(x) not in hidden]


def _without_ours(method: Any) -> Callable[..., Any]:
    """Save or load a layer's raw variables, with pruned entries at zero, without our variables."""

    def call(self: Any, *args: Any) -> Any:
        sidecar = sidecar_of(self)
        hidden = list(vars(self).get("_lilliput_variables", ()))
        if sidecar is None:
            return method(self, *args)
        sidecar.zero_pruned(self)
        sidecar.is_bare = True
        for variable in hidden:
            untrack(self, variable)
        try:
            return method(self, *args)
        finally:
            for variable in hidden:
                track(self, variable)
            sidecar.is_bare = False
            sidecar.zero_pruned(self)

    return call
