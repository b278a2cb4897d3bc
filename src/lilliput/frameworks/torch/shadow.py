"""The shadow class: a subclass of a module's class on which compressed attributes are properties.

It is a subclass of the user's class with the same name, created once per class and set of attributes. The
user's ``__init_subclass__`` is not run for it, so that a registry of classes does not contain shadows.
"""

from __future__ import annotations

import copyreg
import sys
import weakref
from typing import Any, ClassVar

from torch import nn
from torch.nn.utils import parametrize

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.frameworks.torch.computed import is_eager
from lilliput.frameworks.torch.sidecar import (
    SIDECAR,
    hold_parameters,
    narrow_of,
    release_parameters,
    write_zeros,
)
from lilliput.frameworks.torch.weights import is_sharded, raw

# By identity of the base, which a shadow keeps alive: when the last module of a class leaves its
# shadow, both can be freed.
_shadows: weakref.WeakValueDictionary[tuple[int, tuple[str, ...], tuple[type, ...]], type] = (
    weakref.WeakValueDictionary()
)


_GET_PARAMETER = nn.Module.get_parameter.__code__
_REGISTER_PARAMETRIZATION = parametrize.register_parametrization.__code__


class Shadowed:
    """The common behaviour of all shadow classes."""

    _lilliput_base: ClassVar[Any]
    _lilliput_names: ClassVar[tuple[str, ...]]
    _lilliput_mixins: ClassVar[tuple[type, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """End the chain here, before the user's class is notified of a subclass."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let pickle and deepcopy rebuild the shadow from the class that can be imported."""
        parts = list(super().__reduce_ex__(protocol))
        if parts[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            _refuse_copy(self)
        cls = type(self)
        parts[:2] = [_rebuild, (cls._lilliput_base, cls._lilliput_names, cls._lilliput_mixins)]
        return tuple(parts)

    def __setstate__(self: Any, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        hold_parameters(self)

    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        release_parameters(self)  # a move may create new Parameters, or replace their data
        try:
            return super()._apply(*args, **kwargs)  # type: ignore[misc]
        finally:
            hold_parameters(self)

    def _save_to_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
        if is_eager():
            write_zeros(self)  # an optimizer may have moved pruned weights since the last read
        super()._save_to_state_dict(*args, **kwargs)  # type: ignore[misc]

    def register_parameter(self: Any, name: str, param: Any) -> None:
        """Also mask a Parameter that replaces another."""
        super().register_parameter(name, param)  # type: ignore[misc]
        hold_parameters(self)


def shadow_class(base: Any, names: tuple[str, ...], mixins: tuple[type, ...] = ()) -> type:
    """Return the subclass of ``base`` on which ``names`` are compressed attributes."""
    found = _shadows.get((id(base), names, mixins))
    if found is None:
        found = _shadows[id(base), names, mixins] = _make(base, names, mixins)
    return found


def _make(base: Any, names: tuple[str, ...], mixins: tuple[type, ...]) -> type:
    members: dict[str, Any] = {x: _shadow_property(x) for x in names if x != "forward"}
    if "forward" in names:
        members["forward"] = _narrow_forward(base)
    members |= {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_lilliput_base": base,
        "_lilliput_names": names,
        "_lilliput_mixins": mixins,
    }
    if hasattr(base, "__deepcopy__"):
        members["__deepcopy__"] = _refuse_copy
    if issubclass(base, nn.RNNBase):
        members["_flat_weights"] = property(_flat_weights, _ignore)
    return type(base.__name__, (Shadowed, *mixins, base), members)


def _shadow_property(name: str) -> property:
    def get(self: nn.Module) -> Any:
        value = raw(self, name)
        sidecar = self._modules.get(SIDECAR)
        # FSDP2 reads the attribute to find its own shards, which must be returned unchanged.
        if value is None or sidecar is None or is_sharded(value):
            return value
        try:
            if not is_eager():
                return sidecar.transform(name, value)  # type: ignore[operator]
            asking = sys._getframe(1).f_code
            if asking is _REGISTER_PARAMETRIZATION:
                _refuse_parametrization(self, name)
            # get_parameter() accepts nothing but the Parameter itself.
            return sidecar.read(name, value, is_computed=asking is not _GET_PARAMETER)  # type: ignore[operator]
        except AttributeError as error:
            # Python would continue with nn.Module.__getattr__, which returns the raw weight.
            raise AlgorithmError(
                f"computing {name!r} of a {type(self).__name__}: {error}"
            ) from error

    def set_(self: nn.Module, value: Any) -> None:
        self.__dict__[name] = value

    return property(get, set_)


def _refuse_parametrization(module: nn.Module, name: str) -> None:
    raise StageError(
        f"register_parametrization: {name!r} of this {type(module).__name__} is compressed; "
        "parametrize it before compress(), or after strip()."
    )


def _narrow_forward(base: Any) -> Any:
    # The base is bound here: below a class of FSDP2, type(self) would lead back to this method.
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        narrow = narrow_of(self)
        if narrow is None:
            return base.forward(self, *args, **kwargs)
        return narrow.forward(self, *args, **kwargs)

    return forward


def _flat_weights(self: Any) -> list[Any]:
    """The weights that recurrent layers use, which are otherwise raw parameters."""
    return [getattr(self, name, None) for name in self._flat_weights_names]


def _ignore(self: Any, value: Any) -> None:
    """Recurrent layers refresh this list themselves; here it is always computed."""


def _refuse_copy(self: Any, memo: Any = None) -> None:
    raise UnsupportedModelError(
        f"a {type(self).__name__} defines its own copying or pickling, and would lose its masks; "
        "strip() the model first."
    )


def _rebuild(base: type, names: tuple[str, ...], mixins: tuple[type, ...] = ()) -> Any:
    cls: Any = shadow_class(base, names, mixins)
    return cls.__new__(cls)
